// What a thread of the program does in a stop (stop_world.h): it arrives, stands, carries out orders, and
// leaves.
#include "libckpt_rt/stop/stop_world.h"

#include "base/clock.h"
#include "libckpt_rt/core/kernel/current_processor.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// relaxed in both: what orders them is the word by which the thread is counted.
void note_first(std::atomic<int64_t>& first, int64_t now) {
  int64_t seen = first.load(std::memory_order_relaxed);
  while ((seen == 0 || seen > now) && !first.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void note_last(std::atomic<int64_t>& last, int64_t now) {
  int64_t seen = last.load(std::memory_order_relaxed);
  while (seen < now && !last.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

}  // namespace

bool StopWorld::arrive_in_handler(ucontext_t* frame, bool waited, int traced, bool serves) {
  // seq_cst, with release() and the check in try_stop(): either the agent sees us inside, or we see that
  // the stop it gave up is released. With less, both could look at the other's old word.
  inside_.fetch_add(1, std::memory_order_seq_cst);
  // acquire: pairs with try_stop()'s release store, so that the words it reset are seen.
  uint32_t stop = requested_.load(std::memory_order_acquire);
  bool joins = stop != released_.load(std::memory_order_seq_cst);
  if (joins) {
    ThreadSlot slot;
    // relaxed: the number means nothing but itself.
    const uint32_t number = entered_.fetch_add(1, std::memory_order_relaxed);
    slot.group = group_of(number);
    slot.processor = current_processor();
    slot.traced = traced;
    if (traced != 0) slot.tracer = traced::own_tracer();
    if (number < kFirstArrived) first_arrived_[number] = &slot;
    if (!waited) {
      // Before arrived_: the agent that counts this thread finds it here.
      workers_.fetch_add(1, std::memory_order_relaxed);
      note_first(worker_stood_ns_, now_ns());
    }
    save_thread_in_handler(slot, frame);
    ThreadSlot* head = slots_.load(std::memory_order_relaxed);
    do {
      slot.next = head;
      // release: the agent that reads the list's head sees complete slots.
    } while (
        !slots_.compare_exchange_weak(head, &slot, std::memory_order_release, std::memory_order_relaxed));
    // release: an agent that counts this arrival sees the slot linked. seq_cst with await_arrivals(): either
    // we see how many it waits for, or it sees us counted. The same for a worker and ahead_, in
    // await_waiting().
    if (arrived_.fetch_add(1, std::memory_order_seq_cst) + 1 >= awaited_.load(std::memory_order_seq_cst) ||
        (!waited && ahead_.load(std::memory_order_seq_cst))) {
      futex_wake(arrived_, 1);
    }
    wait_for_release(slot, stop, waited ? slot.group : slot.group | kWorkers, serves);
    const int64_t now = now_ns();
    note_last(last_left_ns_, now);
    if (!waited) {
      note_last(last_worker_left_ns_, now);
      // release: an agent that sees the last worker gone sees when it left.
      if (workers_.fetch_sub(1, std::memory_order_release) == 1) futex_wake(workers_, 1);
    }
    uint64_t pending = ~0ull;
    sys::call(__NR_rt_sigpending, &pending, sizeof(pending));
    if ((pending & ~slot.pending_mask) != 0) signalled_late_.store(slot.tid, std::memory_order_relaxed);
  }
  // The slot's last use is above: with inside_ at 0 the agent may begin another stop.
  if (inside_.fetch_sub(1, std::memory_order_release) == 1) futex_wake(inside_, 1);
  return joins;
}

void StopWorld::wait_for_release(ThreadSlot& slot, uint32_t stop, uint32_t groups, bool serves) {
  for (;;) {
    uint32_t turn = turn_.load(std::memory_order_acquire);
    if (static_cast<int32_t>(released_.load(std::memory_order_acquire) - stop) >= 0) return;
    if (slot.order.load(std::memory_order_acquire) == static_cast<uint32_t>(SlotOrder::kGiven)) {
      slot.work(slot.work_argument);
      slot.order.store(static_cast<uint32_t>(SlotOrder::kDone), std::memory_order_release);
      done_.fetch_add(1, std::memory_order_release);
      futex_wake(done_, 1);
    }
    if (__builtin_expect(!serves, 1)) {
      futex_wait_as(turn_, turn, groups);
      continue;
    }
    tracing::let_stand();
    constexpr int64_t kEachNs = 10'000'000, kSecond = 1'000'000'000;
    const int64_t until = now_ns() + kEachNs;
    const timespec time{until / kSecond, until % kSecond};
    futex_wait_as(turn_, turn, groups, &time);
  }
}

}  // namespace ckpt
