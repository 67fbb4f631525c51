#include "cluster/srun/signals.h"

namespace ckpt::cluster::srun {

namespace {

constexpr int kMost = 64;

constinit volatile sig_atomic_t come[kMost + 1]{};
constinit sigset_t before{}, waiting{}, taken{};

void note(int signal) { come[signal] = 1; }

}  // namespace

void take_signals(std::initializer_list<int> signals) {
  sigemptyset(&taken);
  for (const int s : signals) {
    struct sigaction as_it_is {};
    if (sigaction(s, nullptr, &as_it_is) == 0 && as_it_is.sa_handler == SIG_IGN && s != SIGCHLD) continue;
    struct sigaction action {};
    action.sa_handler = note;
    sigaction(s, &action, nullptr);
    sigaddset(&taken, s);
  }
  sigprocmask(SIG_BLOCK, &taken, &before);
  // Let in even if the caller has them blocked: its mask is for what we start.
  waiting = before;
  for (int s = 1; s <= kMost; ++s) {
    if (sigismember(&taken, s) == 1) sigdelset(&waiting, s);
  }
}

const sigset_t* wait_mask() { return &waiting; }

bool has_come(int signal) {
  if (come[signal] == 0) return false;
  come[signal] = 0;
  return true;
}

void give_signals_back() {
  signal(SIGPIPE, SIG_DFL);
  // execve does it too, but what comes before it would be noted, by nobody.
  for (int s = 1; s <= kMost; ++s) {
    if (sigismember(&taken, s) == 1) signal(s, SIG_DFL);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace ckpt::cluster::srun
