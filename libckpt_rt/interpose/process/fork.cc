// New processes: hooks::before_fork() is called in the parent before the fork, and hooks::after_fork() behind
// it, whether there is a child or not. hooks::in_child_after_fork() is called in the child of fork(). (A
// child of clone() without CLONE_VM finds out by a page that is empty in it: core/process/fork/own_page.h. A
// child of vfork() shares our memory until it executes another program.)
#include <unistd.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

// fork(), forkpty() and daemon() of libc all run the handlers of pthread_atfork(). In the child they run in
// the order of registration: this constructor runs early, so ours come before the program's. Before the fork
// they run in the opposite order: ours come late; and early in the parent.
[[gnu::constructor(101)]] void watch_forks() {
  pthread_atfork(hooks::before_fork, hooks::after_fork, hooks::in_child_after_fork);
}

}  // namespace

// libc's _Fork() runs no handlers of pthread_atfork().
CKPT_INTERPOSE(pid_t, _Fork, void) {
  hooks::before_fork();
  pid_t pid = real_function(RealFunction::kUnderscoreFork).as<pid_t()>()();
  if (pid == 0)
    hooks::in_child_after_fork();
  else
    hooks::after_fork();
  return pid;
}
