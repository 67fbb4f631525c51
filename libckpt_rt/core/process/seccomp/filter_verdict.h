// What a filter of system calls (seccomp) would say of a call: the kernel's classic BPF, interpreted.
//
// Owner:  libckpt_rt. Callers: the thread that is about to set a filter.
// Never:  makes a system call. A filter that the kernel would not take gets some answer; it is not set.
// Source: linux/filter.h, linux/seccomp.h, seccomp(2).
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <span>

namespace ckpt::filter_verdict {

// SECCOMP_RET_*, with its data.
uint32_t of(std::span<const sock_filter> code, const seccomp_data& call);

// It ends the program for what each checkpoint needs: a handler that returns, a thread, files.
bool ends_at_checkpoint(std::span<const sock_filter> code);

}  // namespace ckpt::filter_verdict
