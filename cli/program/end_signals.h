// SIGINT, SIGTERM and SIGHUP while a trial is under way: they wait until what it has started has ended and
// its images are removed; then they do what they always do.
//
// Owner: cli. Ordinary code, one thread. Callers: the trials of `ckpt check`. One at a time.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include "base/raii_fd.h"
#include "cli/starting/run_command.h"

namespace ckpt::cli {

class EndSignals {
 public:
  EndSignals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (int s : {SIGINT, SIGTERM, SIGHUP}) {
      // A signal that the caller wants ignored (nohup) stays so: blocked, the signal would be kept.
      struct sigaction as_it_is {};
      if (sigaction(s, nullptr, &as_it_is) == 0 && as_it_is.sa_handler != SIG_IGN) sigaddset(&wanted, s);
    }
    sigprocmask(SIG_BLOCK, &wanted, &before_);
    came_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~EndSignals() { put_back(); }  // one that has come ends this process here
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  int fd() const { return came_.get(); }  // readable: one has come, and nobody may read it
  bool came() const {
    pollfd one{fd(), POLLIN, 0};
    return poll(&one, 1, 0) > 0;
  }
  // In a child, before it becomes another program.
  void put_back() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  // A command is asked to end when one has come.
  CommandEnd for_command() const { return {fd(), &before_}; }

 private:
  sigset_t before_;
  ScopedFd came_;
};

}  // namespace ckpt::cli
