// Keys of memory (pkeys(7)): which are taken, and which memory has which. Threads have their rights to them
// in their registers, which come back anyway.
//
// Owner:     libckpt_rt, in its own data, so that an image has it: kMost mappings with a key.
// Callers:   look_for_keys_stopped: a thread of ours, threads standing. capture_stopped: then the agent.
//            give_again: the leader of a restart, when all memory is mapped, before another thread of the
//            program goes on.
// Source:    pkey_alloc(2), arch/x86/include/asm/pkeys.h, arch/x86/mm/pkeys.c.
//
// The kernel lists neither keys nor whose they are. To find the free keys, they are taken and given back. The
// key of memory is tried out: the kernel refuses to read for us what this thread has no right to. Memory that
// nobody may read has key 0 after a restart, and devices are not read. For memory that may be run and not
// read the kernel takes a key by itself, the lowest that is free, and does so again at a restart.
#pragma once

#include <cstdint>
#include <span>

namespace ckpt {

struct Mapping;

namespace protection_keys {

inline constexpr uint32_t kMost = 1024;

// Which keys are taken; filtered: nobody asks, and none counts as taken. Threads stand: no call of theirs
// gets another number by what is taken here.
void look_for_keys_stopped(bool filtered);
// nullptr, or a note: what of them a restart does not give again. Not to be called under seccomp filters. The
// calling thread may use all keys afterwards.
const char* capture_stopped(std::span<const Mapping> mappings);
// LibraryNotes of what could not be given again. The calling thread may use the program's keys afterwards.
uint32_t give_again();

}  // namespace protection_keys
}  // namespace ckpt
