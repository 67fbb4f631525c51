#include <csignal>
#include <initializer_list>

#include "tests/programs/signals/signals.h"

int main(int argc, char** argv) {
  using namespace signals;
  // Every exercise lets in its own signals, on its own threads.
  sigset_t all;
  sigemptyset(&all);
  for (int s : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGURG, SIGCHLD}) sigaddset(&all, s);
  for (int s = SIGRTMIN; s < SIGRTMIN + 8; ++s) sigaddset(&all, s);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  return victim::run_victim(
      {"signals",
       "Sends, blocks, queues and handles signals, and runs timers.",
       {{"queued", "queued signals pending with their values", 600, queued},
        {"nested", "handlers within handlers on alternate stacks", 60'000, nested},
        {"masks", "the signal mask of each thread stays", 200'000, masks},
        {"itimers", "interval timers tick on", 120, interval_timers},
        {"ptimers", "POSIX timers of each kind expire once each", 60, posix_timers},
        {"suspends", "sigsuspend and sigwait", 4'000, suspends},
        {"pingpong", "pairs of threads signal each other without rest", 10'000, pingpong},
        {"oneshots", "timers that expire once, armed again at once", 4'000, one_shots},
        {"libc", "the handler of libc's own signal is the newest that was set", 150, handler_of_libc}}},
      argc, argv);
}
