#include "libckpt_rt/stop_world.h"

#include <errno.h>

#include "base/clock.h"
#include "libckpt_rt/task_list.h"

namespace ckpt {

namespace {

bool contains(std::span<const int> tids, int tid) {
  for (int t : tids) {
    if (t == tid) return true;
  }
  return false;
}

}  // namespace

bool StopWorld::arrive_in_handler(ucontext_t* frame) {
  // seq_cst, with release() and the check in stop(): either the agent sees us inside, or we see that
  // the stop it gave up is released. With less, both could look at the other's old word.
  inside_.fetch_add(1, std::memory_order_seq_cst);
  // acquire: pairs with stop()'s release store, so that the words it reset are seen.
  uint32_t stop = requested_.load(std::memory_order_acquire);
  bool joins = stop != released_.load(std::memory_order_seq_cst);
  if (joins) {
    ThreadSlot slot;
    save_thread_in_handler(slot, frame);
    ThreadSlot* head = slots_.load(std::memory_order_relaxed);
    do {
      slot.next = head;
      // release: the agent that reads the list's head sees complete slots.
    } while (!slots_.compare_exchange_weak(head, &slot, std::memory_order_release, std::memory_order_relaxed));
    // release: whoever counts this arrival sees the slot linked.
    arrived_.fetch_add(1, std::memory_order_release);
    futex_wake(arrived_, 1);
    wait_for_release(slot, stop);
  }
  // The slot's last use is above: with inside_ at 0 the agent may begin another stop.
  if (inside_.fetch_sub(1, std::memory_order_release) == 1) futex_wake(inside_, 1);
  return joins;
}

void StopWorld::wait_for_release(ThreadSlot& slot, uint32_t stop) {
  for (;;) {
    uint32_t turn = turn_.load(std::memory_order_acquire);
    if (static_cast<int32_t>(released_.load(std::memory_order_acquire) - stop) >= 0) return;
    if (slot.order.load(std::memory_order_acquire) == static_cast<uint32_t>(SlotOrder::kGiven)) {
      slot.work(slot.work_argument);
      slot.order.store(static_cast<uint32_t>(SlotOrder::kDone), std::memory_order_release);
      done_.fetch_add(1, std::memory_order_release);
      futex_wake(done_, 1);
    }
    futex_wait(turn_, turn);
  }
}

void StopWorld::wake_waiting_threads() {
  turn_.fetch_add(1, std::memory_order_release);
  futex_wake(turn_);
}

Result<StopWorld::Stopped> StopWorld::stop(std::span<const int> own_tids, int signal, int64_t timeout_ns,
                                           Arena& scratch, Failure& failure) {
  while (uint32_t n = inside_.load(std::memory_order_seq_cst)) futex_wait(inside_, n);
  arrived_.store(0, std::memory_order_relaxed);
  slots_.store(nullptr, std::memory_order_relaxed);
  // release: handlers that see the new number see the words above as well.
  requested_.store(released_.load(std::memory_order_relaxed) + 1, std::memory_order_release);

  const int pid = sys::getpid();
  const int64_t deadline = now_ns() + timeout_ns;
  ArenaVector<int> tasks(scratch), signalled(scratch), ignored(scratch);
  auto give_up = [&](ExitCode code, int error, int tid, const char* what) {
    release();
    failure.tid = tid;
    TaskFacts facts;
    if (tid != 0) read_task_facts(tid, facts);
    return tid != 0 ? make_error(code, error, "thread {} ({}, state {}) {}", tid, facts.name, facts.state, what)
                    : make_error(code, error, "{}", what);
  };

  for (;;) {
    if (!list_tasks(tasks)) return give_up(ExitCode::kSystem, 0, 0, "cannot list /proc/self/task; mount /proc");
    // Which of the listed threads have arrived? What arrives after this count shows in the next round.
    uint32_t arrived = arrived_.load(std::memory_order_acquire);
    uint32_t waiting_for = 0;
    int missing = 0;
    for (int tid : tasks) {
      if (contains(own_tids, tid) || contains(ignored.span(), tid)) continue;
      bool here = false;
      for (ThreadSlot* s = slots_.load(std::memory_order_acquire); s != nullptr; s = s->next) {
        here = here || s->tid == tid;
      }
      if (here) continue;
      if (!contains(signalled.span(), tid)) {
        long r = sys::call(__NR_tgkill, pid, tid, signal);
        if (r == -ESRCH) continue;  // has exited
        if (r == -EAGAIN) {
          // RLIMIT_SIGPENDING: the queue of the user is full. Wait for room, as long as we may.
          missing = tid;
          ++waiting_for;
          continue;
        }
        if (r != 0) return give_up(ExitCode::kSystem, static_cast<int>(r), tid, "cannot be signalled");
        if (!signalled.push_back(tid)) return give_up(ExitCode::kInternal, ENOMEM, 0, "no memory to stop threads");
      }
      missing = tid;
      ++waiting_for;
    }
    if (waiting_for == 0) break;
    timespec nap{0, 1'000'000};
    if (futex_wait(arrived_, arrived, &nap) != -ETIMEDOUT) continue;
    // Nobody came for a millisecond: is it a thread that never will? The exited leader of a program
    // whose main thread called pthread_exit, and the kernel's io_uring workers, take no signals.
    for (int tid : tasks) {
      if (contains(own_tids, tid) || contains(ignored.span(), tid)) continue;
      TaskFacts facts;
      if (!read_task_facts(tid, facts)) continue;
      if ((tid == pid && facts.state == 'Z') || facts.kernel_worker) {
        if (!ignored.push_back(tid)) return give_up(ExitCode::kInternal, ENOMEM, 0, "no memory to stop threads");
      }
    }
    if (now_ns() > deadline) {
      return give_up(ExitCode::kTimeout, 0, missing,
                     "did not stop in time; the program goes on, try again or raise CKPT_STOP_TIMEOUT");
    }
  }
  Stopped stopped;
  stopped.first = slots_.load(std::memory_order_acquire);
  for (ThreadSlot* s = stopped.first; s != nullptr; s = s->next) ++stopped.count;
  stopped.leader_exited = contains(ignored.span(), pid);
  return stopped;
}

void StopWorld::release() {
  // seq_cst: see arrive_in_handler. As a release it also publishes everything done to the program's
  // memory while it stood still.
  released_.store(requested_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  wake_waiting_threads();
}

void StopWorld::collect_pending(const Stopped& stopped, uint64_t our_signal_bit) {
  bool process_done = false;
  for (ThreadSlot* s = stopped.first; s != nullptr; s = s->next) {
    if ((s->pending_mask & ~our_signal_bit) == 0) continue;
    PendingMasks masks;
    if (!read_pending_masks(s->tid, masks)) continue;
    s->collect_private = masks.thread & ~our_signal_bit;
    s->collect_process = process_done ? 0 : masks.process & ~our_signal_bit;
    process_done = true;
    if ((s->collect_private | s->collect_process) == 0) continue;
    run_on(*s, [](void* slot) { collect_pending_in_handler(*static_cast<ThreadSlot*>(slot)); }, s);
  }
}

void StopWorld::run_on(ThreadSlot& slot, void (*work)(void*), void* argument) {
  slot.work = work;
  slot.work_argument = argument;
  uint32_t before = done_.load(std::memory_order_acquire);
  slot.order.store(static_cast<uint32_t>(SlotOrder::kGiven), std::memory_order_release);
  wake_waiting_threads();
  // The word changes once, by the thread that carried out this order.
  while (done_.load(std::memory_order_acquire) == before) futex_wait(done_, before);
  slot.order.store(static_cast<uint32_t>(SlotOrder::kNone), std::memory_order_relaxed);
}

void StopWorld::reset_after_restart() {
  for (FutexWord* w : {&inside_, &requested_, &arrived_, &released_, &turn_, &done_}) {
    w->store(0, std::memory_order_relaxed);
  }
  slots_.store(nullptr, std::memory_order_relaxed);
}

}  // namespace ckpt
