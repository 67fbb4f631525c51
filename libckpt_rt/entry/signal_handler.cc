#include "libckpt_rt/entry/signal_handler.h"

#include <signal.h>
#include <ucontext.h>

#include "libckpt_rt/core/library.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/interrupted_call.h"

extern "C" void ckpt_sigreturn_trampoline();

namespace ckpt {

namespace {

void on_checkpoint_signal(int, void* information, void* context) {
  auto* info = static_cast<siginfo_t*>(information);
  auto* frame = static_cast<ucontext_t*>(context);
  const bool stops = library.world.is_stop(*info);
  if (stops) guard::stand_without_guard(frame);
  guard::Handler under_guard(frame);
  const bool waited = StopWorld::was_waiting(*frame);
  // Before the image is taken: what a second attempt at the call needs is worked out now.
  fix_interrupted_call(frame);
  // A child made behind libc's back, or one that still shares our memory (vfork): not its business.
  if (library.pid != sys::getpid()) return;
  // Before it stands: when all do, it may be known that none is left.
  const bool may_be_ours = library.world.may_be_ours(*info);
  const bool stood = stops && library.world.arrive_in_handler(frame, waited);
  if (info->si_code != SI_TKILL && library.active) {
    agent::Request request;
    if (info->si_code == SI_QUEUE) request.cookie = reinterpret_cast<uint64_t>(info->si_value.sival_ptr);
    request.without_cookie = info->si_code == SI_USER;
    request.checkpoint = !may_be_ours;
    agent::request(request);
  }
  under_guard.leave(stood);
  fix_interrupted_call(frame);
}

}  // namespace

#ifndef SA_RESTORER
#define SA_RESTORER 0x04000000
#endif

KernelSigaction make_own_action(void (*handler)(int, void*, void*)) {
  KernelSigaction action{};
  action.handler = reinterpret_cast<uint64_t>(handler);
  action.flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_RESTORER;
  action.restorer = reinterpret_cast<uint64_t>(&ckpt_sigreturn_trampoline);
  // A handler of the program must not run on top of a stopped thread.
  action.mask = ~0ull;
  return action;
}

long install_signal_handler(int signal) {
  KernelSigaction action = make_own_action(&on_checkpoint_signal);
  return kernel_sigaction(signal, &action, nullptr);
}

}  // namespace ckpt
