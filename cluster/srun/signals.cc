#include "cluster/srun/signals.h"

namespace ckpt::cluster::srun {

namespace {

volatile sig_atomic_t come[65];
sigset_t before;

void note(int signal) { come[signal] = 1; }

}  // namespace

void take_signals(std::initializer_list<int> signals) {
  sigset_t ours;
  sigemptyset(&ours);
  for (const int s : signals) {
    struct sigaction as_it_is {};
    if (sigaction(s, nullptr, &as_it_is) == 0 && as_it_is.sa_handler == SIG_IGN && s != SIGCHLD) continue;
    struct sigaction action {};
    action.sa_handler = note;
    sigaction(s, &action, nullptr);
    sigaddset(&ours, s);
  }
  sigprocmask(SIG_BLOCK, &ours, &before);
}

const sigset_t* wait_mask() { return &before; }

bool has_come(int signal) {
  if (come[signal] == 0) return false;
  come[signal] = 0;
  return true;
}

void give_signals_back() {
  // execve makes handlers default ones; SIGPIPE was ignored.
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace ckpt::cluster::srun
