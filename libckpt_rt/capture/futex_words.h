// Words that the kernel itself changes: futexes of priority-inheriting and of robust mutexes, and
// FUTEX_WAKE_OP. It cannot wait there for a fault of userfaultfd: on a protected page LOCK_PI, UNLOCK_PI
// and WAKE_OP fail with EFAULT, upon which libc aborts the program, and the mark that the owner of a
// robust mutex has died is not made at all (docs/kernel_notes.md). So their pages are never protected.
//
// The same holds for the word that it clears when a thread exits: pthread_join() would never return.
//
// How they are known, at a stop:
//   - PI and robust mutexes that pthread_mutex_init made in this process (note_mutex), words that the
//     program names in syscall(SYS_futex, …) (note_word);
//   - words of threads that are about to exit (note_exit); those of all stopped threads are in their slots;
//   - the mutexes that stopped threads hold or are taking: their robust lists;
//   - the words of futex calls that stopped threads are in, or about to enter.
// A case that remains: a PI mutex that another process made, in shared memory, and that is not contended at
// the stop: a thread that takes it writes the word from user space first, and so makes the page writable.
//
// Ahead of the stop (arming.h) only what was noted is known, and it is known in time: the agent names the
// range that it is about to protect (Hold) and then looks for noted words in it; a thread notes its word,
// waits while a Hold covers it, and makes the page writable. The second of the two sees what the first has
// done.
//
// At a restart whose memory comes while the program runs, the same words must be there before it does: these
// calls cannot wait for a missing page either (load).
//
// Owner:     libckpt_rt. Callers: note_*: threads of the program. Hold, collect: the agent, the latter
//            while threads stand still. load: the leader of a restart, before any thread goes on.
// Never:     note_* allocate, take a lock, touch errno.
#pragma once

#include <linux/futex.h>

#include "base/memory/arena.h"
#include "libckpt_rt/core/threads/thread_context.h"

#ifndef FUTEX_LOCK_PI2
#define FUTEX_LOCK_PI2 13
#endif

namespace ckpt {

class StillMemory;

namespace futex_words {

// Does the operation of futex(2) write to a word in the kernel?
inline bool written_by_kernel(uint32_t operation) {
  switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_LOCK_PI:
    case FUTEX_LOCK_PI2:
    case FUTEX_TRYLOCK_PI:
    case FUTEX_UNLOCK_PI:
    case FUTEX_WAIT_REQUEUE_PI:
    case FUTEX_CMP_REQUEUE_PI:
    case FUTEX_WAKE_OP:
      return true;
    default:
      return false;
  }
}

void note_mutex(const void* mutex);
void note_word(const void* word);
void note_exit(const void* word);  // until the next stop
// More were noted than there is room for: pages cannot be told apart, the program must not be protected.
bool overflow();

class Hold {
 public:
  explicit Hold(AddrRange range);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
};
// Was a word in the range noted?
bool noted_in(AddrRange range);
void reset_hold();  // restart, forked child

// Appends the pages. False: no room in the arena.
[[nodiscard]] bool collect(const ThreadSlot* stopped, StillMemory& memory, ArenaVector<Addr>& pages);

// Waits until the pages of noted words are there, and of those of the calls that the threads make when they
// go on. Robust lists are the loader's to bring (restart/plan/memory/lazy_plan.cc).
void load(const ThreadSlot* threads);

}  // namespace futex_words
}  // namespace ckpt
