#include "libckpt_rt/back/parked_threads.h"

#include <errno.h>
#include <linux/rseq.h>
#include <linux/sched.h>
#include <sys/prctl.h>

#include <algorithm>

#include "base/clock.h"
#include "base/protocol/restart_protocol.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/core/threads/own_dispatch.h"
#include "libckpt_rt/core/threads/visit_stack.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

extern "C" {
long ckpt_clone3_thread(void* clone_args, size_t size, void (*fn)(void*), void* arg);
[[noreturn]] void ckpt_call_on_stack(void* stack_top, void (*fn)(void*), void* arg);
[[noreturn]] void ckpt_signal_return(void* frame);
}

namespace ckpt {

namespace {

constexpr size_t kStack = 16 << 10;

void await_change(FutexWord& word, uint32_t until) {
  for (uint32_t v; (v = word.load(std::memory_order_acquire)) < until;) futex_wait(word, v);
}

// The kernel would write to these words of the program.
void give_up_words(const ThreadSlot& slot) {
  if (slot.rseq != 0)
    sys::call(__NR_rseq, slot.rseq, slot.rseq_len, RSEQ_FLAG_UNREGISTER, slot.rseq_signature);
  constexpr long kRobustListHeadBytes = 24;
  sys::call(__NR_set_robust_list, 0L, kRobustListHeadBytes);
  sys::call(__NR_set_tid_address, 0L);
  own_dispatch::give_up();
}

void take_words_again(const ThreadSlot& slot) {
  if (slot.rseq != 0) sys::call(__NR_rseq, slot.rseq, slot.rseq_len, 0L, slot.rseq_signature);
  if (slot.robust_list != 0) sys::call(__NR_set_robust_list, slot.robust_list, slot.robust_list_len);
  sys::call(__NR_set_tid_address, slot.clear_child_tid);
  own_dispatch::set_again();
}

}  // namespace

ParkedThreads::Thread* ParkedThreads::add(Arena& arena) {
  void* memory = arena.allocate(sizeof(Thread), alignof(Thread));
  auto* stack = static_cast<std::byte*>(arena.allocate(kStack));
  if (memory == nullptr || stack == nullptr) return nullptr;
  auto* thread = new (memory) Thread;
  thread->all = this;
  thread->stack_top = stack + kStack;
  return thread;
}

Result<void> ParkedThreads::reserve(Arena& arena, size_t threads) {
  arena_ = &arena;
  threads_ = ArenaVector<Thread*>(arena);
  if (!threads_.reserve(threads))
    return make_error(ExitCode::kInternal, ENOMEM,
                      "no address space left for the threads; raise the limit (ulimit -v)");
  return {};
}

Result<void> ParkedThreads::park(ThreadSlot* first, int leader) {
  uint32_t count = 0;
  for (ThreadSlot* s = first; s != nullptr; s = s->next, ++count) {
    Thread* thread = add(*arena_);
    if (thread == nullptr || !threads_.push_back(thread)) {
      return make_error(ExitCode::kInternal, ENOMEM,
                        "no address space left for the threads; raise the limit (ulimit -v)");
    }
    thread->tid = s->tid;
    thread->leader = s->tid == leader;
    thread->stopped = s;
  }
  for (Thread* thread : threads_) stop_state.world.start_on(*thread->stopped, &park_entry, thread);
  await_change(parked_, count);
  return {};
}

void ParkedThreads::park_entry(void* t) {
  auto& thread = *static_cast<Thread*>(t);
  give_up_words(*thread.stopped);
  ckpt_visit_stack(thread.stack_top, &wait_for_orders, t);
  take_words_again(*thread.stopped);
}

void ParkedThreads::created_entry(void* t) {
  wait_for_orders(t);
  // unpark(): the program does not know a thread that create() has made.
  sys::call(__NR_exit, 0L);
}

void ParkedThreads::wait_for_orders(void* t) {
  auto& thread = *static_cast<Thread*>(t);
  ParkedThreads& all = *thread.all;
  all.parked_.fetch_add(1, std::memory_order_release);
  futex_wake(all.parked_);
  for (;;) {
    const uint32_t order = thread.order.load(std::memory_order_acquire);
    if (order == kWait) {
      futex_wait(thread.order, order);
      continue;
    }
    if (order == kReturn) return;
    if (order == kEnd) sys::call(__NR_exit, 0L);
    if (order == kResume) {
      // Below the slot lie only frames of a handler that will never run again (restart_entry.cc).
      const uint64_t below = (reinterpret_cast<uint64_t>(thread.slot) - 256) & ~15ull;
      ckpt_call_on_stack(reinterpret_cast<void*>(below), &go_on, t);
    }
    thread.work(thread.argument);
    thread.order.store(kWait, std::memory_order_relaxed);
    thread.done.store(1, std::memory_order_release);
    futex_wake(thread.done);
  }
}

void ParkedThreads::give(Thread& thread, Order order) {
  thread.done.store(0, std::memory_order_relaxed);
  thread.order.store(order, std::memory_order_release);
  futex_wake(thread.order);
}

void ParkedThreads::run_on(Thread& thread, void (*work)(void*), void* argument) {
  thread.work = work;
  thread.argument = argument;
  give(thread, kRun);
  await_change(thread.done, 1);
}

void ParkedThreads::unpark() {
  for (Thread* thread : threads_) {
    give(*thread, kReturn);
    if (thread->stopped != nullptr)
      stop_state.world.await(*thread->stopped);
    else
      while (sys::call(__NR_tgkill, sys::getpid(), thread->tid, 0L) == 0) sys::call(__NR_sched_yield);
  }
  threads_.clear();
  parked_.store(0, std::memory_order_relaxed);
}

long ParkedThreads::create(int tid) {
  struct Creation {
    Thread* thread;
    int tid;
    long result;
  } creation{add(*arena_), tid, -ENOMEM};
  if (creation.thread == nullptr) return -ENOMEM;
  creation.thread->tid = tid;
  const uint32_t before = parked_.load(std::memory_order_acquire);
  const auto make = [&] {
    run_on(
        *executor(),
        [](void* c) {
          auto& made = *static_cast<Creation*>(c);
          clone_args args{};
          args.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
          // The kernel adds size to stack: the child starts at the sum.
          args.stack = reinterpret_cast<uint64_t>(made.thread->stack_top) - kStack;
          args.stack_size = kStack;
          args.set_tid = reinterpret_cast<uint64_t>(&made.tid);
          args.set_tid_size = 1;
          made.result = ckpt_clone3_thread(&args, sizeof(args), &created_entry, made.thread);
        },
        &creation);
  };
  make();
  // A thread that has just ended is off all lists before its number is free (release_task() since Linux
  // 6.15). The ending thread may have no processor in between. While somebody has the number, kill(2) finds
  // him.
  constexpr int64_t kLongestNs = 10'000'000'000;
  const int64_t deadline = now_ns() + kLongestNs;
  while (creation.result == -EEXIST && sys::call(__NR_kill, tid, 0L) == -ESRCH && now_ns() < deadline) {
    constexpr timespec kMoment{0, 1'000'000};
    sys::call(__NR_nanosleep, &kMoment, 0L);
    make();
  }
  if (sys::failed(creation.result)) return creation.result;
  if (!threads_.push_back(creation.thread)) return -ENOMEM;
  await_change(parked_, before + 1);
  return 0;
}

void ParkedThreads::end_others(std::span<const int32_t> tids) {
  size_t left = 0;
  for (Thread* thread : threads_) {
    if (std::binary_search(tids.begin(), tids.end(), thread->tid)) {
      threads_[left++] = thread;
      continue;
    }
    give(*thread, kEnd);
    // A first thread that has ended stays, as a zombie.
    if (!thread->leader)
      while (sys::call(__NR_tgkill, sys::getpid(), thread->tid, 0L) == 0) sys::call(__NR_sched_yield);
  }
  threads_.truncate(left);
}

ParkedThreads::Thread* ParkedThreads::executor() {
  for (Thread* thread : threads_) {
    if (thread->leader) return thread;
  }
  return threads_.empty() ? nullptr : threads_[0];
}

ParkedThreads::Thread* ParkedThreads::find(int tid) {
  for (Thread* thread : threads_) {
    if (thread->tid == tid) return thread;
  }
  return nullptr;
}

void ParkedThreads::go_on(void* t) {
  auto& thread = *static_cast<Thread*>(t);
  ParkedThreads& all = *thread.all;
  uint32_t notes = 0;
  long r = restore_thread_in_handler(*thread.slot, notes);
  if (r == 0) r = own_dispatch::set_again();
  // A thread that create() has made has the rights of the thread that made it.
  const ThreadCredentials& own = thread.slot->credentials;
  const bool made = thread.stopped == nullptr && own.known;
  if (r == 0 && made) r = become_user_of_thread(own, own, true, notes);
  if (r == 0 && made) {
    r = restore_capabilities_of_thread(
        own,
        {false, 0, 0, 0, saved_process.cap_bounding, saved_process.cap_ambient, saved_process.secure_bits},
        notes);
    ThreadCredentials now;
    save_credentials_in_handler(now);
    if (now.known && (own.permitted & ~now.permitted) != 0) notes |= kNoteThreadCapabilities;
  }
  // Its parent is the same: what it is to be sent when that ends is not lost, as it is by a restart. A change
  // of user takes it away.
  sys::call(__NR_prctl, PR_SET_PDEATHSIG, long{thread.slot->parent_death_signal}, 0L, 0L, 0L);
  // relaxed: as of the notes.
  if (r != 0 && !all.failed_.exchange(true, std::memory_order_relaxed)) all.failure_ = {r, thread.tid};
  // relaxed: read when all are ready, which orders it.
  all.notes_.fetch_or(notes, std::memory_order_relaxed);
  all.ready_.fetch_add(1, std::memory_order_release);
  futex_wake(all.ready_);
  await_change(all.go_, 1);
  ucontext_t* frame = thread.slot->frame;
  fix_interrupted_call(frame);
  own_dispatch::return_into(frame);
  // The last look at our memory.
  all.left_.fetch_add(1, std::memory_order_release);
  ckpt_signal_return(frame);
}

uint32_t ParkedThreads::resume(void (*before_go)(void*), void (*all_ready)(void*), void* argument) {
  if (Thread* first = executor()) run_on(*first, before_go, argument);
  const auto count = static_cast<uint32_t>(threads_.size());
  for (Thread* thread : threads_) give(*thread, kResume);
  await_change(ready_, count);
  all_ready(argument);
  go_.store(1, std::memory_order_release);
  futex_wake(go_);
  // Nobody may wake us: the word is in memory that is about to go.
  while (left_.load(std::memory_order_acquire) < count) sys::call(__NR_sched_yield);
  return notes_.load(std::memory_order_relaxed);
}

}  // namespace ckpt
