#include "job/session/gate.h"

#include <fcntl.h>

#include "base/sys.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job::gate {

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

}  // namespace

bool is_here() {
  const int pid = sys::getpid();
  // relaxed: stored before the word by which we wait.
  return this_process.pid == pid && (pid != 1 || holder.load(std::memory_order_relaxed) == number_in_proc());
}

void shut(FutexWord& word) {
  if (sys::getpid() == 1) holder.store(number_in_proc(), std::memory_order_relaxed);
  word.store(1, std::memory_order_release);
}

void open(FutexWord& word) {
  if (word.exchange(0, std::memory_order_release) != 0) futex_wake(word);
}

}  // namespace ckpt::job::gate
