// Threads of the program that have left their stacks, while the memory under them is put back.
//
// A stopped thread stands in our signal handler, on a stack of the program. A parked thread waits on a stack
// of ours and touches nothing else: no memory of the program, no thread-local storage, no word of the
// library's data. Its rseq area, robust list and clear_child_tid are taken from the kernel, which would write
// to them.
//
//   stopped ──park()──► parked ──unpark()──► stopped              nothing has happened
//                          │ ──end_others()──► gone               born since the checkpoint
//                          └──resume()──► as its slot in the image says
//
// Owner:     BackRun. Memory: blocks of its arena, which holds no memory of the program's.
// Callers:   the agent, with the threads stopped.
// Never:     gives a thread an order before it has done the last.
#pragma once

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt {

class ParkedThreads {
 public:
  struct Thread {
    int tid = 0;
    bool leader = false;
    ThreadSlot* stopped = nullptr;     // where it stood; nullptr: made by create()
    const ThreadSlot* slot = nullptr;  // resume(): the state in which it goes on
    FutexWord order{0}, done{0};
    void (*work)(void*) = nullptr;
    void* argument = nullptr;
    ParkedThreads* all = nullptr;
    std::byte* stack_top = nullptr;
  };

  // Room in the list for this many threads, before the stop. park() and create() take the stacks from the
  // arena.
  Result<void> reserve(Arena& arena, size_t threads);
  // All that are in the list of stopped ones.
  Result<void> park(ThreadSlot* first, int leader);
  // The other way. Then the stop can be released.
  void unpark();
  // A parked thread makes one more thread, with this id. 0, or -errno.
  long create(int tid);
  // Threads that are not in the list, which is sorted, end. Returns when they are gone.
  void end_others(std::span<const int32_t> tids);
  // Calls work(argument) on that thread, and waits for it.
  void run_on(Thread& thread, void (*work)(void*), void* argument);
  // The leader, else any.
  Thread* executor();
  Thread* find(int tid);
  std::span<Thread* const> threads() const { return threads_.span(); }

  // before_go(argument) is called on the executor. Then each thread takes what its slot says; when all have,
  // all_ready(argument) is called here, and all go on. Where failure() is set all_ready must not return.
  // Returns when none uses our memory any more. The LibraryNotes.
  // A thread whose rights, pointer or words could not be set: it must not run.
  struct Failure {
    long error = 0;
    int tid = 0;
  };
  Failure failure() const { return failure_; }
  uint32_t resume(void (*before_go)(void*), void (*all_ready)(void*), void* argument);

 private:
  enum Order : uint32_t { kWait = 0, kRun = 1, kReturn = 2, kEnd = 3, kResume = 4 };
  static void park_entry(void* thread);
  static void wait_for_orders(void* thread);
  static void created_entry(void* thread);
  static void go_on(void* thread);
  void give(Thread& thread, Order order);
  Thread* add(Arena& arena);

  Arena* arena_ = nullptr;
  ArenaVector<Thread*> threads_;
  FutexWord parked_{0};
  FutexWord ready_{0}, go_{0}, left_{0};
  std::atomic<uint32_t> notes_{0};
  std::atomic<bool> failed_{false};
  Failure failure_;  // of the first to fail; read when all are ready
};

}  // namespace ckpt
