// The threads of this process, as the kernel lists them, and facts about one of them.
//
// Owner: libckpt_rt. Callers: the agent. Never: allocates but from the Arena given.
#pragma once

#include <span>

#include "base/memory/arena.h"

namespace ckpt {

// tids of /proc/self/task. The list may lack some if a thread exits meanwhile: the kernel ends it at a thread
// that exits while it is listed (proc_task_readdir), and may leave some out after an exit between two reads.
// False: the arena is full or /proc is not there.
bool list_tasks(ArenaVector<int>& tids);

// Whether that is every thread of the process, whose id is pid: there are as many, and all of them are still
// alive.
bool are_all_tasks(int pid, std::span<const int> tids);

// Whether /proc/self/task has it.
bool is_task(int tid);

// How many there are, zombies included; -1: /proc is not there.
long count_tasks();

// Threads that wait in a system call now, sorted, and the ends of their stacks. (The kernel does not tell the
// stack of a busy thread.) False: as above.
bool list_waiting(Arena& arena, ArenaVector<Addr>& stack_pointers, ArenaVector<int>& waiting);

struct TaskFacts {
  char state = '?';            // R, S, D, T, Z, X …
  bool kernel_worker = false;  // an io_uring worker: never runs the program, takes no signals
  bool is_exiting = false;     // it runs no more code of the program
  int wait_status = 0;         // of one that has exited, as wait(2) tells it
  char name[16] = {};
};
bool read_task_facts(int tid, TaskFacts& facts);

// How long it has run, in ns; -1: the thread is gone, or the kernel does not say (schedstat).
int64_t processor_time_ns(int tid);

// SigPnd, ShdPnd and SigBlk of /proc/self/task/TID/status. False: the thread is gone.
struct SignalMasks {
  uint64_t thread = 0, process = 0;  // pending
  uint64_t blocked = 0;
};
bool read_signal_masks(int tid, SignalMasks& masks);

// Reads a small /proc file whole into buffer, NUL-terminated: by its path, or as it is now by a descriptor.
// Bytes read, or -errno.
long read_small_file(const char* path, char* buffer, size_t size);
long read_small_file(int fd, char* buffer, size_t size);

}  // namespace ckpt
