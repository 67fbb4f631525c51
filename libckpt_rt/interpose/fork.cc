// New processes: a parent tells before it has a child, the child of fork() is told that it is one. (A child
// of clone() without CLONE_VM finds out by a page that is empty in it, core/process/own_page.h; one of vfork() shares
// our memory until it executes another program.)
#include <unistd.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

// fork(), forkpty(), daemon() and popen() of libc all run the handlers of pthread_atfork(). Children's
// handlers run in the order of registration, early from a constructor of a preloaded library; handlers before
// the fork run in the opposite order, ours late.
[[gnu::constructor(101)]] void watch_forks() {
  pthread_atfork(hooks::before_fork, nullptr, hooks::in_child_after_fork);
}

}  // namespace

// Runs no handlers.
CKPT_INTERPOSE(pid_t, _Fork, void) {
  hooks::before_fork();
  pid_t pid = real_function(RealFunction::kUnderscoreFork).as<pid_t()>()();
  if (pid == 0) hooks::in_child_after_fork();
  return pid;
}
