// Filters of system calls (seccomp) that the program has set for itself: the kernel shows them to nobody
// without CAP_SYS_ADMIN, so each is remembered when it is set.
//
// Owner:     libckpt_rt, in its own data, so that an image and a forked child have it: kMost filters of
//            kMostInstructions together.
// Callers:   note: the thread that has set a filter. look_stopped: the agent, threads standing.
//            reset_after_restart: the leader of a restart, while it is alone. may_be_set_again, set_again:
//            each thread at a restart; the latter is the last that it does for us.
// Never:     makes another system call on a program's thread than the program's own: a filter may punish it.
// Source:    seccomp(2), prctl(2) PR_SET_SECCOMP.
//
// Remembered is what all threads have: a filter that was set while there was one thread, or for all threads
// (SECCOMP_FILTER_FLAG_TSYNC). Once one was set otherwise, or with a listener, nothing is known any more.
// A filter that was set past libc shows in the number of each thread's filters, which must be that of the
// remembered ones and of those from before the program. Where it is not there is a note, and a restart sets
// none. A child of vfork() that sets a filter for itself makes the numbers of its parent differ.
#pragma once

#include <cstdint>

namespace ckpt {

struct ThreadSlot;

namespace own_filters {

inline constexpr uint32_t kMost = 64, kMostInstructions = 16384;

// By which call a filter is set: the one may be forbidden by an earlier filter, and the other not.
enum class By : uint8_t { kPrctl, kSeccomp };
// The bare call. program: sock_fprog. flags: of seccomp(2).
long set(By by, unsigned flags, const void* program);
// After a call that has set the filter. all_have_it: every thread of the process has it.
void note(By by, unsigned flags, const void* program, bool all_have_it);

// In the stop, when the threads' numbers are known. before: filters that were there before the program.
void look_stopped(const ThreadSlot* threads, uint32_t before);
// What look_stopped() found: a restart sets all filters again, of which there are some.
bool come_back();

// Where a restart sets none, the program has none from then on.
void reset_after_restart();
// May the calling thread set them, in what it has become? True if there is nothing to set.
bool may_be_set_again();
// Sets none where it may not, which was noted. An error of the kernel: the thread must not go on.
long set_again();

}  // namespace own_filters
}  // namespace ckpt
