// What the agent has stopped threads do (stop_world.h): orders to one of them, and looking at the signals
// that are pending for each.
#include "libckpt_rt/stop/stop_world.h"

#include "base/clock.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/threads/late_signals.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

// An order need not wake every thread there is. The first to arrive are groups of their own.
uint32_t StopWorld::group_of(uint32_t number) {
  constexpr uint32_t kGroups = 31;  // without kWorkers
  return number < kFirstArrived ? 1u << number : 1u << (kFirstArrived + number % (kGroups - kFirstArrived));
}

void StopWorld::wake_waiting_threads(uint32_t groups) {
  turn_.fetch_add(1, std::memory_order_release);
  futex_wake_those(turn_, groups);
}

void StopWorld::start_on(ThreadSlot& slot, void (*work)(void*), void* argument) {
  slot.work = work;
  slot.work_argument = argument;
  slot.order.store(static_cast<uint32_t>(SlotOrder::kGiven), std::memory_order_release);
  wake_waiting_threads(slot.group);
}

void StopWorld::await(ThreadSlot& slot) {
  for (;;) {
    // Read before the order: done_ changes after the order.
    const uint32_t before = done_.load(std::memory_order_acquire);
    if (slot.order.load(std::memory_order_acquire) == static_cast<uint32_t>(SlotOrder::kDone)) break;
    futex_wait(done_, before);
  }
  slot.order.store(static_cast<uint32_t>(SlotOrder::kNone), std::memory_order_relaxed);
}

namespace {

// The signals that the kernel sends to a thread that writes.
constexpr uint64_t kOfWriters = 1ull << (SIGXFSZ - 1) | 1ull << (SIGPIPE - 1);

// False: not known which are. The agent's own: SIGXFSZ, where the image met the program's limit
// (RLIMIT_FSIZE). Sent to the process it would end the program. Of a standard signal that waits for the
// process too the agent is given its own.
bool give_up_own_signals(uint64_t except) {
  SignalMasks own;
  if (!read_signal_masks(sys::gettid(), own)) return false;
  constexpr timespec kNow{0, 0};
  constexpr uint64_t kStandard = (1ull << 31) - 1;  // 1 to 31; real-time signals come behind them
  for (uint64_t left = own.thread & ~except & kStandard; left != 0; left &= left - 1) {
    const uint64_t one = left & -left;
    sys::call(__NR_rt_sigtimedwait, &one, 0L, &kNow, sizeof(one));
  }
  return true;
}

}  // namespace

void StopWorld::collect_pending(ThreadSlot* stopped, const Look& look, PendingSignals& pending) {
  pending.count = 0;
  pending.overflow = false;
  late_signals::add_to(pending);
  const int pid = sys::getpid();
  ThreadSlot* leader = stopped;
  for (ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    if (s->tid == pid) leader = s;
  }
  // Our threads have every signal blocked: what is pending for the agent is the process's, when it has given
  // up its own.
  uint64_t process = 0;
  sys::call(__NR_rt_sigpending, &process, sizeof(process));
  if ((process & ~look.except & kOfWriters) != 0) {
    const bool are_of_process = give_up_own_signals(look.except);
    sys::call(__NR_rt_sigpending, &process, sizeof(process));
    if (!are_of_process) process &= ~kOfWriters;
  }
  // relaxed: no signal of ours is left, and every thread has looked at the signal that it took.
  if ((process & look.except) == 0) signalled_process_.store(false, std::memory_order_relaxed);
  process &= ~look.except;
  // No thread of the program runs meanwhile, so nobody can miss what is out of its queue. The agent takes the
  // process's signals first: a thread that has one of the same number would be given both.
  struct Again {
    PendingSignals* pending;
    uint32_t from;
  } again{&pending, pending.count};
  if (leader != nullptr && process != 0) take_pending(process, 0, pending);
  for (ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    s->collect_private = 0;
    SignalMasks masks;
    // A signal that waits for the process may hide one that was sent to the thread since it stood.
    if ((look.at_all || ((s->pending_mask | process) & ~look.except) != 0 ||
         timers_name_thread(look.timers, s->tid)) &&
        read_signal_masks(s->tid, masks)) {
      s->collect_private = masks.thread & ~look.except;
    }
    s->pending_mask = look.at_all ? ~0ull : s->collect_private | process | look.except;
    if (s->collect_private == 0) continue;
    s->pending = &pending;
    run_on(
        *s,
        [](void* slot) {
          auto& own = *static_cast<ThreadSlot*>(slot);
          take_pending(own.collect_private, own.tid, *own.pending);
        },
        s);
  }
  if (pending.count == again.from) return;
  run_on(
      *leader, [](void* a) { queue_again(*static_cast<Again*>(a)->pending, static_cast<Again*>(a)->from); },
      &again);
}

bool StopWorld::await_left(int64_t deadline_ns) {
  // seq_cst: see arrive_in_handler(). As an acquire: what the last thread to leave has seen.
  while (uint32_t n = inside_.load(std::memory_order_seq_cst)) {
    const int64_t left = deadline_ns - now_ns();
    if (left <= 0) return false;
    const timespec wait{left / 1'000'000'000, left % 1'000'000'000};
    futex_wait(inside_, n, &wait);
  }
  return true;
}

int StopWorld::signalled_late(int64_t deadline_ns) {
  return await_left(deadline_ns) ? signalled_late_.load(std::memory_order_relaxed) : -1;
}

}  // namespace ckpt
