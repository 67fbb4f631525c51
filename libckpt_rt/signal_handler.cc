#include "libckpt_rt/signal_handler.h"

#include <signal.h>
#include <ucontext.h>

#include "libckpt_rt/agent.h"
#include "libckpt_rt/interrupted_call.h"
#include "libckpt_rt/library.h"

extern "C" void ckpt_sigreturn_trampoline();

namespace ckpt {

namespace {

#ifndef SA_RESTORER
#define SA_RESTORER 0x04000000
#endif

void on_checkpoint_signal(int, siginfo_t* info, void* context) {
  auto* frame = static_cast<ucontext_t*>(context);
  // A child made behind libc's back, or one that still shares our memory (vfork): not its business.
  if (library.pid != sys::getpid()) return;
  if (info->si_code == SI_TKILL) {
    library.world.arrive_in_handler(frame);
  } else if (library.active) {
    agent::Request request;
    if (info->si_code == SI_QUEUE) request.cookie = reinterpret_cast<uint64_t>(info->si_value.sival_ptr);
    agent::request(request);
  }
  fix_interrupted_call(frame);
}

}  // namespace

long install_signal_handler(int signal) {
  // SA_ONSTACK: a coroutine's stack may be too small for a frame. SA_RESTART: what the kernel can
  // restart, it restarts; the rest is interrupted_call.h's. All signals blocked: a handler of the
  // program must not run on top of a stopped thread.
  KernelSigaction action{};
  action.handler = reinterpret_cast<uint64_t>(&on_checkpoint_signal);
  action.flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_RESTORER;
  action.restorer = reinterpret_cast<uint64_t>(&ckpt_sigreturn_trampoline);
  action.mask = ~0ull;
  return sys::call(__NR_rt_sigaction, signal, &action, 0L, 8L);
}

}  // namespace ckpt
