#include "libckpt_rt/entry/signal_handler.h"

#include <signal.h>
#include <ucontext.h>

#include "base/memory/fork_path.h"
#include "base/protocol/control_protocol.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/own_dispatch.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// may_be_ours: the library itself may have sent it.
void take_request(const siginfo_t& info, bool may_be_ours) {
  if (!this_process.active) return;
  agent::Request request;
  if (info.si_code == SI_QUEUE) request.cookie = reinterpret_cast<uint64_t>(info.si_value.sival_ptr);
  request.without_cookie = info.si_code == SI_USER;
  request.checkpoint = !may_be_ours;
  agent::request(request);
}

void on_checkpoint_signal(int signal, void* information, void* context) {
  auto* info = static_cast<siginfo_t*>(information);
  auto* frame = static_cast<ucontext_t*>(context);
  const own_dispatch::Pause pause(frame);
  // No system call before the guard is left; in a new child there is none.
  know_child();
  const bool stops = stop_state.world.is_stop(*info);
  if (stops) guard::stand_without_guard(frame);
  guard::Handler under_guard(frame);
  const bool waited = StopWorld::was_waiting(*frame);
  // Before the image is taken: what a second attempt at the call needs is worked out now.
  fix_interrupted_call(frame);
  // A child that still shares our memory (vfork): not its business.
  if (this_process.pid != sys::getpid()) return;
  // By a number that the program has taken (moved_signal.h): an asker sent it just before the move.
  if (signal != own_signal.number && !stops) {
    if (info->si_code == SI_QUEUE && reinterpret_cast<uint64_t>(info->si_value.sival_ptr) >= kLeastCookie)
      agent::request({reinterpret_cast<uint64_t>(info->si_value.sival_ptr)});
    return under_guard.leave(false);
  }
  // Before it stands: when all do, it may be known that none is left.
  const bool may_be_ours = stop_state.world.may_be_ours(*info);
  const int traced = traced::word_in(*info);
  if (__builtin_expect(traced != 0, 0)) traced::note_tracer();
  const int served = stops ? tracing::serve_in_handler() : tracing::kServesNobody;
  const bool serves = served != tracing::kServesNobody;
  bool stood = stops && stop_state.world.arrive_in_handler(frame, waited, traced, serves);
  while (__builtin_expect(serves, 0) && tracing::after_stop(served))
    stood = stop_state.world.arrive_in_handler(frame, waited, traced, serves) || stood;
  if (__builtin_expect((traced & traced::kTakes) != 0, 0)) {
    for (siginfo_t waits{}; traced::take_request(waits);)
      take_request(waits, stop_state.world.may_be_ours(waits));
  } else if (info->si_code != SI_TKILL) {
    take_request(*info, may_be_ours);
  }
  if (__builtin_expect(traced != 0, 0)) traced::forget_tracer();
  under_guard.leave(stood);
  fix_interrupted_call(frame);
  if (__builtin_expect(traced != 0, 0)) traced::leave_handler(traced);
}

// Of SIGSETXID, while it stops threads that do not take ours (stop_world.h).
void on_libc_signal(int signal, void* information, void* context) {
  auto* info = static_cast<siginfo_t*>(information);
  auto* frame = static_cast<ucontext_t*>(context);
  const own_dispatch::Pause pause(frame);
  know_child();
  StopWorld& world = stop_state.world;
  const bool stops = world.is_stop_by_libc_signal(*info);
  if (stops) guard::stand_without_guard(frame);
  guard::Handler under_guard(frame);
  if (world.is_stop_by_libc_signal(*info)) {
    const bool waited = StopWorld::was_waiting(*frame);
    fix_interrupted_call(frame);
    const bool stood = world.arrive_in_handler(frame, waited);
    under_guard.leave(stood);
    if (stood) fix_interrupted_call(frame);
    return;
  }
  if (world.libc_action().handler > 1) {
    // Another thread calls setuid() in this very moment: libc's handler does what it is asked.
    reinterpret_cast<SignalHandler>(world.libc_action().handler)(signal, information, context);
  }
  under_guard.leave(false);
}

}  // namespace

CKPT_START_PATH long install_signal_handler(int signal) {
  stop_state.world.serve_libc_signal_by(&on_libc_signal);
  KernelSigaction action = make_own_action(&on_checkpoint_signal);
  return kernel_sigaction(signal, &action, nullptr);
}

}  // namespace ckpt
