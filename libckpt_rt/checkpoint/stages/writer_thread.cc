#include "libckpt_rt/checkpoint/stages/writer_thread.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/checks/named_points.h"
#include "base/sys.h"
#include "libckpt_rt/core/kernel/current_processor.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> WriterThread::spawn() {
  const long spawned = own_threads.writer.spawn([](void* self) { static_cast<WriterThread*>(self)->run(); },
                                                this, DescriptorTable::kShareWithCaller);
  if (spawned != 0) {
    return make_error(ExitCode::kSystem, static_cast<int>(spawned),
                      "cannot start a thread ({}); raise the limit on processes",
                      errno_name(static_cast<int>(spawned)));
  }
  spawned_ = true;
  return {};
}

void WriterThread::write() { give(Order::kWrite); }

void WriterThread::end() {
  if (!ordered_) give(Order::kLeave);
  own_threads.writer.join();
}

void WriterThread::give(Order order) {
  ordered_ = true;
  if (processors_bytes_ != 0) {
    sys::call(__NR_sched_setaffinity, own_threads.writer.tid(), processors_bytes_, processors_);
  }
  order_.store(static_cast<uint32_t>(order), std::memory_order_release);
  futex_wake(order_);
}

// The scheduler likes to wake a thread where it ran last or where it is woken. The scheduler does not look
// for an idle processor after threads that kept all of them busy: the writer is told to stay away from the
// agent's. Should that one be busy with something else after all, the agent does the work itself.
OtherThreads WriterThread::helper() {
  if (!spawned_ || own_threads.writer.tid() == 0) return {};
  const long bytes =
      sys::call(__NR_sched_getaffinity, own_threads.writer.tid(), sizeof(processors_), processors_);
  processors_bytes_ = bytes > 0 ? static_cast<uint32_t>(bytes) : 0;
  int processors = 0;
  for (uint32_t i = 0; i < processors_bytes_; ++i) processors += std::popcount(processors_[i]);
  if (processors < 2) return {};
  return {this,
          [](void* self, void (*work)(void*), void* argument) {
            static_cast<WriterThread*>(self)->start_help(work, argument);
          },
          [](void* self) { static_cast<WriterThread*>(self)->await_help(); }};
}

void WriterThread::start_help(void (*work)(void*), void* argument) {
  work_ = work;
  work_argument_ = argument;
  const uint32_t here = current_processor();
  uint8_t others[sizeof(processors_)];
  std::memcpy(others, processors_, sizeof(others));
  if (here / 8 < processors_bytes_) {
    others[here / 8] = static_cast<uint8_t>(others[here / 8] & ~(1u << here % 8));
    sys::call(__NR_sched_setaffinity, own_threads.writer.tid(), processors_bytes_, others);
  }
  order_.store(static_cast<uint32_t>(Order::kHelp), std::memory_order_release);
  futex_wake(order_);
}

void WriterThread::await_help() {
  uint32_t order = static_cast<uint32_t>(Order::kHelp);
  if (order_.compare_exchange_strong(order, static_cast<uint32_t>(Order::kWait), std::memory_order_acquire)) {
    return work_(work_argument_);  // it has not begun
  }
  while ((order = order_.load(std::memory_order_acquire)) == static_cast<uint32_t>(Order::kHelping)) {
    futex_wait(order_, order);
  }
}

// False: there is nothing to write.
bool WriterThread::await_order() {
  for (;;) {
    // acquire: the work and its argument, and what the agent wrote before.
    uint32_t order = order_.load(std::memory_order_acquire);
    if (order == static_cast<uint32_t>(Order::kLeave)) return false;
    if (order == static_cast<uint32_t>(Order::kWrite)) return true;
    if (order == static_cast<uint32_t>(Order::kWait)) {
      futex_wait(order_, order);
      continue;
    }
    // The agent may take the order back until here.
    if (!order_.compare_exchange_strong(order, static_cast<uint32_t>(Order::kHelping),
                                        std::memory_order_acquire))
      continue;
    work_(work_argument_);
    // release: what the work did is seen by the agent, which gives no other order before it sees this.
    order_.store(static_cast<uint32_t>(Order::kWait), std::memory_order_release);
    futex_wake(order_);
  }
}

void WriterThread::run() {
  if (!await_order()) return;
  BufferPool& pool = source_.pool;
  constexpr size_t kMost = 64;
  const size_t wanted = pool.batch();
  result_ = source_.sink.append(source_.eager.segments());
  points::at("writer.eager");
  CopiedSegment batch[kMost];
  bool first = true;
  while (size_t n = source_.queue.pop(batch, wanted, kMost)) {
    if (result_.ok()) {
      result_ = source_.sink.append({batch, n});
    } else {
      // The disk is full or broken. Threads in faults must not wait for buffers that never come back.
      for (size_t i = 0; i < n; ++i) pool.release(batch[i].buffer);
    }
    if (std::exchange(first, false)) points::at("writer.batch");
  }
}

}  // namespace ckpt
