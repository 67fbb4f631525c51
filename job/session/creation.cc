#include "job/session/creation.h"

#include <fcntl.h>

#include "base/memory/fork_path.h"
#include "base/sys.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job::creation {

CKPT_FORK_DATA constinit FutexWord held{0};
CKPT_FORK_DATA constinit FutexWord end_held{0};

namespace {

// Process 1 of a pid namespace, and a child of it that is process 1 of a new one, have the same number. /proc
// shows them with different ones, for it belongs to one namespace. 0: it is not there.
int number_in_proc() {
  char text[16];
  const long n = sys::call(__NR_readlinkat, AT_FDCWD, "/proc/self", text, sizeof(text));
  int number = 0;
  for (long i = 0; i < n; ++i) number = number * 10 + (text[i] - '0');
  return number;
}

constinit std::atomic<int> holder{0};  // number_in_proc(), where the process is number 1

bool is_holder() {
  const int pid = sys::getpid();
  // relaxed: stored before the word by which we wait.
  return this_process.pid == pid && (pid != 1 || holder.load(std::memory_order_relaxed) == number_in_proc());
}

void shut_gate(FutexWord& word) {
  if (sys::getpid() == 1) holder.store(number_in_proc(), std::memory_order_relaxed);
  word.store(1, std::memory_order_release);
}

void open_gate(FutexWord& word) {
  if (word.exchange(0, std::memory_order_release) != 0) futex_wake(word);
}

}  // namespace

void wait_slowly(FutexWord& word) {
  know_child();
  // A child that shares our memory: not its business.
  if (!is_holder()) return;
  while (word.load(std::memory_order_acquire) != 0) futex_wait(word, 1);
}

void hold() { shut_gate(held); }
void release() { open_gate(held); }
void hold_end() { shut_gate(end_held); }
void release_end() { open_gate(end_held); }

void reset() {
  held.store(0, std::memory_order_relaxed);
  end_held.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt::job::creation
