// Filters of system calls (seccomp) that the program has set for itself: the kernel shows them to nobody
// without CAP_SYS_ADMIN, so each is remembered when it is set.
//
// Owner:     libckpt_rt, in its own data, so that an image and a forked child have it: kMost filters of
//            kMostInstructions together.
// Callers:   may_be_noted, note: the thread that sets a filter. look_stopped: the agent, threads standing.
//            the others: each thread at a restart, as the last that it does for us.
// Never:     makes a system call once a filter is set, nor one that a filter may punish before.
// Source:    seccomp(2), prctl(2) PR_SET_SECCOMP.
//
// Which thread has which is told by numbers alone: if each thread has as many as are remembered, and no more
// than those were there before the program, then each has all of them. Else there is a note, and a restart
// sets none. What was set past libc, or for a listener (SECCOMP_FILTER_FLAG_NEW_LISTENER), makes the numbers
// differ.
#pragma once

#include <cstdint>

namespace ckpt {

struct ThreadSlot;

namespace own_filters {

inline constexpr uint32_t kMost = 64, kMostInstructions = 16384;

// Before the call: is the calling process the one whose data these are? A child of vfork() is not.
bool may_be_noted();
// By which call a filter is set: the one may be forbidden by an earlier filter, and the other not.
enum class By : uint8_t { kPrctl, kSeccomp };
// The bare call. program: sock_fprog. flags: of seccomp(2).
long set(By by, unsigned flags, const void* program);
// After a call that has set the filter.
void note(By by, unsigned flags, const void* program);

// In the stop, when the threads' numbers are known. before: filters that were there before the program.
void look_stopped(const ThreadSlot* threads, uint32_t before);
// What look_stopped() found: a restart sets all filters again, of which there are some.
bool come_back();

// Would set_again() be allowed to the calling thread, in what it has become? True if there is nothing to set.
bool may_be_set_again();
// 0; -EACCES where it is not allowed; another error of the kernel: the thread must not go on then.
long set_again();

}  // namespace own_filters
}  // namespace ckpt
