#include "libckpt_rt/entry/moved_signal.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "base/clock.h"
#include "base/memory/own_place.h"
#include "base/protocol/control_protocol.h"
#include "image/write/directory/image_directory.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/entry/signal_handler.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/signals/handlers.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::moved_signal {

namespace {

constexpr int kFirst = 34, kLast = 64;  // what libc leaves of the real-time signals
// An asker that has found our number sends it at once. Later ones are the program's own, whatever they carry.
constexpr int64_t kLateNs = 10'000'000'000;

constinit std::atomic<int64_t> moved_ns{0};  // CLOCK_MONOTONIC

uint64_t& mask_of(const ThreadSlot& slot) { return *reinterpret_cast<uint64_t*>(&slot.frame->uc_sigmask); }

// Threads stand.
bool is_free(int signal, uint64_t pending, const StopWorld::Stopped& stopped) {
  KernelSigaction action{};
  if (signal == own_signal.number || kernel_sigaction(signal, nullptr, &action) != 0 || action.handler != 0 ||
      (pending & signal_bit(signal)) != 0)
    return false;
  for (const ThreadSlot* s = stopped.first; s != nullptr; s = s->next) {
    if ((s->pending_mask & signal_bit(signal)) != 0) return false;
    const uint64_t mask = mask_of(*s);
    const bool blocks_all = (as_program_sees(mask) & checkpoint_bit()) != 0;
    if ((mask & signal_bit(signal)) != 0 && !blocks_all) return false;
  }
  return true;
}

int find_free(const StopWorld::Stopped& stopped) {
  uint64_t pending = 0;
  sys::call(__NR_rt_sigpending, &pending, sizeof(pending));
  for (int signal = kLast; signal >= kFirst; --signal) {
    if (is_free(signal, pending, stopped)) return signal;
  }
  return 0;
}

// Handlers of the program must not block it.
void open_in_actions(int signal) {
  for (int i = 1; i <= kLast; ++i) {
    KernelSigaction action{};
    if (i == own_signal.number || kernel_sigaction(i, nullptr, &action) != 0 || action.handler <= 1 ||
        (action.mask & signal_bit(signal)) == 0)
      continue;
    action.mask &= ~signal_bit(signal);
    kernel_sigaction(i, &action, nullptr);
  }
}

void open_in_threads(int signal, const StopWorld::Stopped& stopped) {
  for (const ThreadSlot* s = stopped.first; s != nullptr; s = s->next) {
    uint64_t& mask = mask_of(*s);
    mask = as_program_sees(mask) & ~signal_bit(signal);
  }
}

template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  if (auto directory = open_image_directory(own_directory::name()); directory.ok())
    log_format(directory->get(), format, std::forward<Args>(args)...);
}

bool move_stopped(const StopWorld::Stopped& stopped) {
  const int old = own_signal.number, wanted = find_free(stopped);
  KernelSigaction ours{};
  kernel_sigaction(old, nullptr, &ours);
  if (wanted == 0 || install_signal_handler(wanted) != 0) return false;
  open_in_threads(wanted, stopped);
  open_in_actions(wanted);
  // All threads stand: each sees these before the program can set a handler.
  moved_ns.store(now_ns(), std::memory_order_relaxed);
  mark_former_signal(old);
  own_signal.number = wanted;
  hooks::own_handler.store(ours.handler, std::memory_order_relaxed);
  hooks::checkpoint_signal.store(wanted, std::memory_order_relaxed);
  // Requests that came by the former signal. All its signals are blocked here.
  const uint64_t set = signal_bit(old);
  const timespec kNow{0, 0};
  siginfo_t info;
  while (sys::call(__NR_rt_sigtimedwait, &set, &info, &kNow, 8L) == old) {
    const auto cookie = reinterpret_cast<uint64_t>(info.si_value.sival_ptr);
    if (info.si_code == SI_QUEUE && cookie >= kLeastCookie) agent::request({cookie});
  }
  return true;
}

}  // namespace

bool move() {
  Arena scratch;
  if (!scratch.reserve(16 << 20)) return false;
  const RunningOwnThreads ours;
  const int old = own_signal.number;
  int stuck = 0;
  auto stopped =
      stop_state.world.stop({ours.ids(), {}, old, user_settings().stop_timeout_ns}, scratch, &stuck);
  if (!stopped.ok()) {
    say("the program uses signal {}, which stops its threads for a checkpoint, and gets none: {}", old,
        stopped.error().message());
    return false;
  }
  const bool moved = move_stopped(*stopped);
  stop_state.world.release();
  if (!moved) {
    say("the program uses signal {}, which stops its threads for a checkpoint, and all others: it gets none "
        "of "
        "these; give a number that it does not use by CKPT_SIGNAL",
        old);
    return false;
  }
  interval::renew();
  show();
  say("the program uses signal {}: its threads are stopped by signal {} from now on", old, own_signal.number);
  return true;
}

bool took(void* information, void* context) {
  auto* info = static_cast<siginfo_t*>(information);
  auto* frame = static_cast<ucontext_t*>(context);
  const auto cookie = reinterpret_cast<uint64_t>(info->si_value.sival_ptr);
  if (info->si_code != SI_QUEUE || info->si_pid == this_process.pid || cookie < kLeastCookie) return false;
  know_child();
  guard::Handler under_guard(frame);
  const int64_t since = now_ns() - moved_ns.load(std::memory_order_relaxed);
  const bool late = this_process.active && this_process.pid == sys::getpid() && since >= 0 && since < kLateNs;
  if (late) {
    fix_interrupted_call(frame);
    // As in yield(): the mask here is the program's.
    uint64_t all = ~0ull, mask = 0;
    sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &mask, 8L);
    agent::request({cookie});
    sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &mask, 0L, 8L);
  }
  under_guard.leave(false);
  return late;
}

void show() {
  if (!own_signal.sign.empty() && this_process.generation == 0)
    sys::call(__NR_munmap, own_signal.sign.start.value, own_signal.sign.size());
  own_signal.sign = {};
  if (own_signal.number == user_settings().signal) return;
  constexpr std::string_view kPrefix = "/memfd:";
  char name[64];
  *fmt::format_to_n(name, sizeof(name) - 1, "{}{}", kMovedSignalName.substr(kPrefix.size()),
                    own_signal.number)
       .out = '\0';
  const long fd = sys::call(__NR_memfd_create, name, static_cast<long>(MFD_CLOEXEC));
  if (sys::failed(fd)) return;
  const long at = map_own(kPageSize, PROT_NONE, MAP_PRIVATE, static_cast<int>(fd));
  sys::call(__NR_close, fd);
  if (sys::failed(at)) return;
  own_signal.sign = {Addr{static_cast<uint64_t>(at)}, Addr{static_cast<uint64_t>(at)} + kPageSize};
}

namespace {

// False: the process was restarted, or went back, while this thread waited for the agent.
bool ask_to_move(int signal) {
  agent::OwnRequest own;
  agent::Request request;
  request.own = &own;
  request.moves_signal = signal;
  // The agent inherits our mask, and the handler of the stop must not meet its lock in our hands.
  uint64_t all = ~0ull, mask = 0;
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &mask, 8L);
  const bool queued = agent::request(request);
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &mask, 0L, 8L);
  while (queued && own.done.load(std::memory_order_acquire) == 0) futex_wait(own.done, 0);
  return own.restarted == 0;
}

}  // namespace

void yield() {
  const int wanted = own_signal.number;
  while (!ask_to_move(wanted) && own_signal.number == wanted) {
  }
}

}  // namespace ckpt::moved_signal
