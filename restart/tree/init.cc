#include "restart/tree/init.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ckpt {
namespace {

// Everything of ckpt-restart's but the report channel, which becomes descriptor 3.
void drop_descriptors(ReportChannel& report) {
  int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3 && null >= 0; ++fd) dup2(null, fd);
  if (report.fd() != 3) dup3(report.fd(), 3, O_CLOEXEC);
  report.move_to(3);
  sys::call(__NR_close_range, 4, ~0u, 0);
}

}  // namespace

void run_init(ReportChannel& report, pid_t program) {
  prctl(PR_SET_NAME, "ckpt-init");
  drop_descriptors(report);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  ScopedFd signals(signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK));

  bool tied = true;  // ckpt-restart's end ends us
  bool program_runs = true;
  for (;;) {
    for (;;) {
      int status = 0;
      pid_t pid = waitpid(-1, &status, WNOHANG | (program_runs ? WUNTRACED : 0));
      if (pid < 0 && errno == ECHILD && !program_runs) _exit(0);
      if (pid <= 0) break;
      if (pid != program) continue;
      if (WIFSTOPPED(status)) {
        if (tied) report.send(ReportKind::kStopped, WSTOPSIG(status));
        continue;
      }
      program_runs = false;
      if (tied) report.send(ReportKind::kEnded, status);
      tied = false;
    }
    pollfd wait_for[2] = {{signals.get(), POLLIN, 0}, {tied ? report.fd() : -1, POLLIN, 0}};
    if (poll(wait_for, 2, -1) < 0 && errno != EINTR) _exit(0);
    signalfd_siginfo ignored;
    while (read(signals.get(), &ignored, sizeof(ignored)) == static_cast<ssize_t>(sizeof(ignored))) {
    }
    if (wait_for[1].revents == 0) continue;
    auto message = report.receive(nullptr, true);
    if (message && message->kind == ReportKind::kDetach) {
      tied = false;
    } else if ((wait_for[1].revents & (POLLHUP | POLLERR)) != 0) {
      _exit(0);
    }
  }
}

}  // namespace ckpt
