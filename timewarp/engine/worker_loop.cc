// The loop of a thread: messages, GVT, events; what bounds it in time and memory.
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <cmath>

#include "timewarp/engine/progress.h"
#include "timewarp/engine/worker.h"
#include "timewarp/mpi/transport.h"

namespace ckpt::timewarp {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint32_t kBatch = 32, kGvtEvents = 1024;
// A thread alone finds GVT for nothing: what it drops it takes again while it is in the first-level cache.
constexpr uint32_t kGvtEventsAlone = 128;
// Where each event copies a state: so many bytes of copies, so that they are reused while they are in the
// second-level cache. But a round of GVT should be worth a few events.
constexpr size_t kCopiedBetween = 512 << 10;
constexpr uint32_t kFewestBetween = 16;
// So many executed events may wait for GVT. Nothing is lost by waiting: another thread has been taken off its
// processor, and what runs on alone is undone.
constexpr uint64_t kUncommittedRounds = 8;  // in --gvt-events
constexpr uint64_t kUncommittedOfLp = 32;   // times the LPs of a thread, if that is less
// Looks without work before the processor is given away.
constexpr unsigned kPatience = 64;

uint32_t events_between_gvts(const Setup& setup) {
  if (setup.options.gvt_events != 0) return setup.options.gvt_events;
  const uint32_t most = setup.threads == 1 && setup.transport == nullptr ? kGvtEventsAlone : kGvtEvents;
  const ckpt_tw_saving& saving = setup.options.saving;
  if (saving.way != CKPT_TW_COPY || saving.every != 1 || setup.model.saving_of != nullptr) return most;
  const size_t fit = kCopiedBetween / std::max<size_t>(setup.model.state_bytes, 1);
  return static_cast<uint32_t>(std::clamp<size_t>(fit, kFewestBetween, most));
}

}  // namespace

void Worker::place_lps() {
  for (uint32_t id = setup_.first_lp; id - setup_.first_lp < setup_.local_lps; ++id) {
    if (setup_.thread_of(id) != number_) continue;
    Lp& lp = setup_.lp(id);
    lp.executor = this;
    if (!states_.open(lp)) return;
    setup_.model.init(&lp, lp.state());
    if (failing_) {
      failing_ = false;
      setup_.fail_setting_up(id, CKPT_TW_MODEL, "LP " + std::to_string(id) + ", in init: " + failure_);
      return;
    }
    lp.now = kNone;
  }
}

void Worker::run(std::barrier<>& start) {
  try {
    place_lps();
  } catch (const std::bad_alloc&) {
    setup_.fail(CKPT_TW_MEMORY, kNoMemory);
  }
  start.arrive_and_wait();  // the LPs are there: the clock starts
  start.arrive_and_wait();
  try {
    if (!setup_.failed.load(std::memory_order_acquire)) loop();
  } catch (const std::bad_alloc&) {
    setup_.fail(CKPT_TW_MEMORY, kNoMemory);
  }
  if (setup_.transport != nullptr && setup_.failed.load(std::memory_order_acquire)) {
    setup_.transport->leave(setup_.failure.text,
                            [this] { setup_.transport->drain([](const Wire&, const std::byte*) {}); });
  }
  for (uint32_t id = setup_.first_lp; id - setup_.first_lp < setup_.local_lps; ++id) {
    if (setup_.thread_of(id) == number_) states_.close(setup_.lp(id));
  }
}

size_t Worker::receive() {
  size_t received = setup_.transport != nullptr ? receive_from_away() : 0;
  for (Channel* channel : in_) {
    if (channel == nullptr) continue;
    received += channel->drain([this](double time, Event* event, bool cancelled) {
      if (time < gvt_.time) [[unlikely]]
        overtaken(event->key(), event->receiver);
      if (!cancelled) return queue_.push({time, event});
      cancel_here(event);
      handle_cancellations();
    });
  }
  return received;
}

bool Worker::all_flushed() {
  bool all = true;
  for (Channel* channel : out_) {
    if (channel != nullptr) all &= channel->flush();
  }
  return all;
}

Key Worker::settle_for_gvt() {
  receive();
  const Entry first = queue_.min();
  return first.event == nullptr ? Key::never() : first.event->key();
}

void Worker::look_for_gvt() {
  if (setup_.threads == 1 && setup_.transport == nullptr) {
    gvt_ = settle_for_gvt();
    ++rounds_;
    return on_gvt();
  }
  if (setup_.transport != nullptr) {
    if (!setup_.transport->poll(
            want_gvt_, [this] { return settle_for_gvt(); }, &gvt_))
      return;
    want_gvt_ = false;
    ++rounds_;
    drop_proxies();
    return on_gvt();
  }
  if (party_.poll([this] { return all_flushed(); }, [this] { return settle_for_gvt(); }, &gvt_)) {
    ++rounds_;
    on_gvt();
  }
}

void Worker::on_gvt() {
  since_gvt_ = 0;
  if (stuck_ && gvt_ == stuck_key_) return report_failure(stuck_key_, stuck_lp_);
  const int64_t traced = trace_.begin();
  collect(gvt_);
  trace_.add(Trace::Kind::kGvt, traced, 0, gvt_.time, 0);
  shared.uncommitted.store(tail_ - head_, std::memory_order_relaxed);
  shared.committed.store(counters_.committed, std::memory_order_relaxed);
  shared.rolled_back.store(counters_.rolled_back, std::memory_order_relaxed);
  if (gvt_.time == kInfinity) done_ = true;
  if (setup_.options.memory_bytes != 0) enforce_memory_limit(true);

  states_.adapt(
      counters_.executed, counters_.rollbacks,
      event_samples_ == 0 ? 0 : static_cast<double>(event_cycles_) / static_cast<double>(event_samples_));
  window_.judge(gvt_.time, counters_.executed, counters_.rolled_back);
  if (number_ == 0 && setup_.options.progress > 0) report_progress(setup_, gvt_.time, &next_progress_);
}

void Worker::set_limit() {
  double others = kInfinity;
  for (const auto& worker : setup_.workers) {
    if (worker.get() != this) others = std::min(others, worker->shared.clock.load(std::memory_order_relaxed));
  }
  // At least what the slowest thread itself could execute: however small the window, the first event runs.
  limit_ = std::max(others + window_.width(), std::nextafter(others, kInfinity));
  if (tail_ - head_ < most_uncommitted_) {
    waits_for_gvt_ = false;
    return;
  }
  if (!waits_for_gvt_) {
    waits_for_gvt_ = true;
    reached_ = ring_[(tail_ - 1) & ring_mask_].time;
  }
  // Stragglers run, and the event at GVT always does: so GVT goes on.
  limit_ = std::min(limit_, std::nextafter(std::max(reached_, gvt_.time), kInfinity));
}

void Worker::loop() {
  const uint32_t batch = setup_.options.batch != 0 ? setup_.options.batch : kBatch;
  const bool alone = setup_.threads == 1, bounded = !alone || setup_.transport != nullptr;
  const uint32_t gvt_events = events_between_gvts(setup_);
  // GVT that comes often for the sake of the cache bounds nobody more than that.
  const uint64_t a_round =
      setup_.options.gvt_events != 0 ? gvt_events : std::max(gvt_events, kGvtEventsAlone);
  most_uncommitted_ = std::min(kUncommittedRounds * a_round,
                               kUncommittedOfLp * std::max<uint64_t>(setup_.local_lps / setup_.threads, 1));
  limit_ = kInfinity;
  unsigned idle = 0;
  while (!done_ && !setup_.failed.load(std::memory_order_relaxed)) {
    const size_t received = receive();
    if (!alone) {
      const Entry first = queue_.min();
      shared.clock.store(first.time, std::memory_order_relaxed);
      set_limit();
    }
    if (NonBlocking* copies = states_.non_blocking(); copies != nullptr) copies->poll();
    uint32_t n = 0;
    while (n < batch && step()) ++n;
    since_gvt_ += n;
    if (!alone) all_flushed();
    if (n != 0 && bounded) {
      window_.ran_to(ring_[(tail_ - 1) & ring_mask_].time,
                     n < batch && queue_.size() != 0 && !waits_for_gvt_);
    }
    if (since_gvt_ >= gvt_events || n == 0) {
      if (setup_.transport != nullptr) {
        want_gvt_ = true;
      } else if (alone) {
        look_for_gvt();
      } else {
        party_.ask();
      }
    }
    if (setup_.transport != nullptr) {
      setup_.transport->flush();
      // Not farther ahead of GVT than the window: the other processes' clocks are not known.
      limit_ = std::max(gvt_.time + window_.width(), std::nextafter(gvt_.time, kInfinity));
      if (setup_.transport->failed()) setup_.fail(CKPT_TW_MODEL, setup_.transport->failure());
    }
    if (bounded) look_for_gvt();
    if (setup_.options.memory_bytes != 0 && n != 0) enforce_memory_limit(false);
    if (n != 0 || received != 0) {
      idle = 0;
    } else if (++idle > kPatience) {
      if (idle == kPatience + 1) ++counters_.stalls;
      sched_yield();
    } else {
      _mm_pause();
    }
  }
  peak_bytes_ = std::max<uint64_t>(peak_bytes_, regions_.taken());
}

// --- Memory.
// ------------------------------------------------------------------------------------------------------

// Above the limit, in this order: new GVTs and their fossil collection; cancelback: the newest half of what
// this thread has executed is undone, which gives back records, copies and the messages sent; cancelled
// events are taken out of the queue. Meanwhile only the event at GVT itself is executed, until the memory in
// use is below the limit again. A sequential simulation executes that event too, with nothing but the waiting
// events in memory: if that does not fit, nothing will.
void Worker::enforce_memory_limit(bool new_gvt) {
  constexpr uint64_t kCancelBackRound = 2, kPurgeRound = 4, kGiveUpRound = 12;
  int64_t used = static_cast<int64_t>(regions_.taken()) -
                 static_cast<int64_t>(records_.free_blocks() * records_.block_bytes() + states_.free_bytes());
  for (const Pool& pool : events_) used -= static_cast<int64_t>(pool.free_blocks() * pool.block_bytes());
  shared.memory.store(used, std::memory_order_relaxed);
  shared.uncommitted.store(tail_ - head_, std::memory_order_relaxed);
  int64_t all = 0;
  uint64_t uncommitted = 0;
  for (const auto& worker : setup_.workers) {
    all += worker->shared.memory.load(std::memory_order_relaxed);
    uncommitted += worker->shared.uncommitted.load(std::memory_order_relaxed);
  }
  peak_bytes_ = std::max(peak_bytes_, static_cast<uint64_t>(std::max<int64_t>(used, 0)));
  const int64_t most = static_cast<int64_t>(setup_.options.memory_bytes);
  if (!over_memory_) {
    if (all <= most) return;
    over_memory_ = true;
    over_rounds_ = 0;
    fresh_gvt_ = {kNone, 0, 0};  // equals no event
    ++counters_.stalls;
    return;
  }
  if (all <= most - most / 8) {
    over_memory_ = false;
    return;
  }
  if (!new_gvt) return;
  fresh_gvt_ = gvt_;
  ++over_rounds_;
  if (over_rounds_ % kPurgeRound == 0) purge_queue();
  if (over_rounds_ == kCancelBackRound) cancel_back();
  if (over_rounds_ >= kGiveUpRound && uncommitted <= setup_.threads && all > most) {
    setup_.fail(CKPT_TW_MEMORY, "the memory limit of " + std::to_string(most) +
                                    " bytes is too small: at time " + std::to_string(gvt_.time) +
                                    " the waiting events alone take " + std::to_string(all) +
                                    ": raise the limit");
  }
}

void Worker::cancel_back() {
  const uint64_t first_undone = head_ + (tail_ - head_) / 2;
  for (uint64_t at = tail_; at-- > first_undone;) {
    Record* const record = record_at(at);
    // The ring is in the order of execution: behind a record that is not final there may be some that are.
    if (record == nullptr || record->event->key() < gvt_) continue;
    ++counters_.cancelbacks;
    undo_from(setup_.lp(record->event->receiver), record->event->key());
    handle_cancellations();
  }
}

void Worker::purge_queue() {
  std::vector<Entry> waiting;
  while (queue_.size() != 0) {
    const Entry entry = queue_.min();
    queue_.pop();
    if (entry.event->status == EventStatus::kCancelled) {
      drop_event(entry.event, entry.event->from);
    } else {
      waiting.push_back(entry);
    }
  }
  for (const Entry& entry : waiting) queue_.push(entry);
}

}  // namespace ckpt::timewarp
