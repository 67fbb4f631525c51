#include "timewarp/engine/worker.h"

#include <x86intrin.h>

#include <cmath>

#include "timewarp/engine/digest.h"
#include "timewarp/mpi/transport.h"

namespace ckpt::timewarp {

namespace {
constexpr uint64_t kSampleMask = 63;
// Small, and reused from the beginning where GVT comes often: it stays in the first-level cache.
constexpr size_t kRingAtFirst = 256;
}  // namespace

Worker::Worker(Setup& setup, unsigned number)
    : setup_(setup),
      number_(number),
      end_(setup.options.end),
      events_(setup.threads + (setup.transport != nullptr ? 1 : 0)),
      queue_(setup.options.queue, setup.options.prefetch != 0),
      states_(setup, *this, regions_),
      party_(*setup.gvt, number),
      ring_(kRingAtFirst),
      ring_mask_(kRingAtFirst - 1),
      window_(setup.options.window) {
  regions_.set_page(setup.options.page_kib);
  for (Pool& pool : events_) pool.open(regions_, setup.event_bytes);
  records_.open(regions_, sizeof(Record) + (setup.copy_behind_record ? setup.model.state_bytes : 0));
  trace_.open(setup.options.trace != nullptr);
  for (unsigned t = 0; t < setup.threads; ++t) {
    out_.push_back(t == number ? nullptr : &setup.channel(number, t));
    in_.push_back(t == number ? nullptr : &setup.channel(t, number));
  }
}

Event* Worker::take_event_for(unsigned to) {
  Pool& pool = events_[to];
  if (pool.free_blocks() == 0 && has_crates_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(crates_lock_);
    for (const auto& crate : crates_) pool.accept(crate);
    crates_.clear();
    has_crates_.store(false, std::memory_order_relaxed);
  }
  return static_cast<Event*>(pool.take());
}

void Worker::accept_blocks(std::vector<void*>&& blocks) {
  std::lock_guard lock(crates_lock_);
  crates_.push_back(std::move(blocks));
  has_crates_.store(true, std::memory_order_relaxed);
}

void Worker::drop_event(Event* event, uint16_t from) {
  constexpr size_t kCrate = 1024, kTooMany = 4 * kCrate;
  Pool& pool = events_[from];
  if (from == setup_.threads) [[unlikely]] {
    const auto found = foreign_.find({event->sender, event->order});
    if (found != foreign_.end() && found->second == event) foreign_.erase(found);
  }
  pool.give(event);
  // We send less to that thread than it sends to us: its blocks gather here.
  if (from != number_ && from < setup_.threads && pool.free_blocks() >= kTooMany) {
    std::vector<void*> crate;
    pool.hand_over(kCrate, crate);
    setup_.workers[from]->accept_blocks(std::move(crate));
  }
}

// --- What handlers ask for.
// ---------------------------------------------------------------------------------------

void Worker::fail(Lp&, const char* what) {
  if (failing_) return;
  failing_ = true;
  failure_ = what;
}

void Worker::send(Lp& lp, uint32_t to, double delay, const void* message, size_t bytes) {
  if (repeating_) {
    ++lp.sent;
    return;
  }
  const double time = lp.now + delay;
  const bool local = setup_.local(to);
  if (!(delay >= 0) || bytes > setup_.model.message_bytes || (!local && to >= setup_.model.lps))
      [[unlikely]] {
    return fail(lp, wrong_send(setup_.model, to, delay, bytes).c_str());
  }
  uint64_t depth = 0;
  if (time == lp.now) {
    depth = event_ != nullptr ? depth_of(event_->order) + 1 : 0;
    if (depth > kDeepest) return fail(lp, kTooDeep);
  }
  const uint64_t order = depth << kCountBits | lp.sent++;
  if (!(time < end_)) return;
  if (!local) [[unlikely]] {
    return send_away(lp, to, time, order, message, bytes);
  }
  const unsigned thread = setup_.thread_of(to);
  Event* event = thread == number_ ? static_cast<Event*>(events_[thread].take()) : take_event_for(thread);
  event->time = time;
  event->order = order;
  event->sender = lp.id;
  event->receiver = to;
  event->bytes = static_cast<uint32_t>(bytes);
  event->from = static_cast<uint16_t>(number_);
  event->status = EventStatus::kWaiting;
  event->foreign = 0;
  std::memcpy(event->message(), message, bytes);
  if (record_ != nullptr) [[likely]] {
    event->next_sent = record_->first_sent;
    record_->first_sent = event;
  }
  if (thread == number_) return queue_.push({time, event});
  ++counters_.remote;
  party_.note({time, order, lp.id});
  out_[thread]->push(time, event, false);
}

// To another process. A proxy stays in the cause's list, so that the message can be cancelled.
void Worker::send_away(Lp& lp, uint32_t to, double time, uint64_t order, const void* message, size_t bytes) {
  if (record_ != nullptr) {
    auto* proxy = static_cast<Event*>(events_[number_].take());
    *proxy = {
        time, order, lp.id, to, record_->first_sent, 0, static_cast<uint16_t>(number_), EventStatus::kWaiting,
        0};
    record_->first_sent = proxy;
    proxies_.push_back({lp.now, proxy});
  }
  ++counters_.remote;
  setup_.transport->post(setup_.process_of(to), {time, order, lp.id, to, static_cast<uint32_t>(bytes), 0},
                         message);
}

size_t Worker::receive_from_away() {
  return setup_.transport->drain([this](const Wire& wire, const std::byte* message) {
    const Key key{wire.time, wire.order, wire.sender};
    if (!setup_.local(wire.receiver) || wire.sender >= setup_.model.lps ||
        wire.bytes > setup_.model.message_bytes) [[unlikely]] {
      return setup_.fail(CKPT_TW_USAGE,
                         "the processes do not run the same model: start all of them with the "
                         "same arguments");
    }
    if (key < gvt_) [[unlikely]]
      return overtaken(key, wire.receiver);
    const auto name = std::make_pair(wire.sender, wire.order);
    if (wire.cancel != 0) {
      // In order: the message has come before, and is not final.
      const auto found = foreign_.find(name);
      if (found == foreign_.end()) [[unlikely]] {
        return setup_.fail(CKPT_TW_MODEL, name_of(key, wire.receiver) +
                                              ": cancelled, but it is not here: this is a bug of the engine "
                                              "or of the transport");
      }
      Event* const event = found->second;
      foreign_.erase(found);
      cancel_here(event);
      return handle_cancellations();
    }
    auto* event = static_cast<Event*>(events_[setup_.threads].take());
    *event = {wire.time,
              wire.order,
              wire.sender,
              wire.receiver,
              nullptr,
              wire.bytes,
              static_cast<uint16_t>(setup_.threads),
              EventStatus::kWaiting,
              1};
    std::memcpy(event->message(), message, wire.bytes);
    foreign_[name] = event;
    queue_.push({wire.time, event});
  });
}

// Of causes that are final: nobody will cancel what they sent.
void Worker::drop_proxies() {
  while (!proxies_.empty() && proxies_.front().first < gvt_.time) {
    events_[number_].give(proxies_.front().second);
    proxies_.pop_front();
  }
}

void Worker::save(Lp& lp, const void* at, size_t bytes) {
  if (record_ == nullptr || repeating_ || lp.way != CKPT_TW_INCREMENTAL) return;
  states_.changing(lp, *record_, at, bytes);
}

void Worker::resize(Lp& lp, size_t bytes) {
  if (bytes > setup_.model.state_bytes) {
    return fail(lp, state_too_large(setup_.model, bytes).c_str());
  }
  // Bytes that are cut off may come back, and are zero then: they count as overwritten.
  if (bytes < lp.state_bytes) {
    save(lp, lp.state() + bytes, lp.state_bytes - bytes);
    std::memset(lp.state() + bytes, 0, lp.state_bytes - bytes);
  }
  lp.state_bytes = static_cast<uint32_t>(bytes);
}

// --- Forward.
// -----------------------------------------------------------------------------------------------------

bool Worker::step() {
  const Entry first = queue_.min();
  if (!(first.time < limit_)) return false;
  Event* const event = first.event;
  if ((over_memory_ || stuck_) && event->status != EventStatus::kCancelled) [[unlikely]] {
    if (over_memory_ && !(event->key() == fresh_gvt_)) return false;
    if (stuck_ && !(event->key() < stuck_key_)) return false;
  }
  queue_.pop();
  if (const Event* soon = queue_.soon(); soon != nullptr) prefetch_lp(setup_.lp(soon->receiver));
  if (event->status == EventStatus::kCancelled) {
    drop_event(event, event->from);
    return true;
  }
  Lp& lp = setup_.lp(event->receiver);
  if (event->time <= lp.now) [[unlikely]] {
    Record* last = record_at(lp.tail);
    if (last != nullptr && *event < *last->event) {
      ++counters_.stragglers;
      undo_from(lp, event->key());
      handle_cancellations();
    }
  }
  stuck_ = false;
  execute(lp, event);
  return true;
}

void Worker::execute(Lp& lp, Event* event) {
  Record* const record = take_record();
  record->event = event;
  record->previous = lp.tail;
  record->first_sent = nullptr;
  record->random = lp.random;
  record->sent = lp.sent;
  record->bits = 0;
  record->from = event->from;
  const int64_t traced = trace_.begin();
  const bool sampled = (counters_.executed & kSampleMask) == 0;
  states_.before(lp, *record);
  if (tail_ - head_ == ring_.size()) grow_ring();
  ring_[tail_ & ring_mask_] = {event->time, record};
  lp.tail = tail_++;
  lp.now = event->time;
  event->status = EventStatus::kExecuted;
  record_ = record;
  event_ = event;
  const uint64_t began = sampled ? __rdtsc() : 0;
  setup_.model.event(&lp, lp.state(), event->message(), event->bytes);
  if (sampled) {
    event_cycles_ += __rdtsc() - began;
    ++event_samples_;
  }
  states_.after(lp, *record);
  record_ = nullptr;
  event_ = nullptr;
  ++counters_.executed;
  trace_.add(Trace::Kind::kEvent, traced, lp.id, event->time, 0);
  if (failing_ || states_.complained()) [[unlikely]] {
    stuck_text_ = failing_ ? std::move(failure_) : states_.take_complaint();
    failing_ = false;
    stuck_key_ = event->key();
    stuck_lp_ = lp.id;
    // Perhaps only because it came too early: reported when everything below it is final.
    undo_from(lp, stuck_key_);
    handle_cancellations();
    stuck_ = true;
  }
}

void Worker::repeat(Lp& lp, Record& record) {
  Event* const event = record.event;
  lp.now = event->time;
  repeating_ = true;
  record_ = &record;
  event_ = event;
  const uint64_t bits = record.bits;
  record.bits = 0;
  setup_.model.event(&lp, lp.state(), event->message(), event->bytes);
  record.bits = bits;
  record_ = nullptr;
  event_ = nullptr;
  repeating_ = false;
}

void Worker::grow_ring() {
  std::vector<Slot> larger(ring_.size() * 2);
  const uint64_t mask = larger.size() - 1;
  for (uint64_t p = head_; p != tail_; ++p) larger[p & mask] = ring_[p & ring_mask_];
  ring_.swap(larger);
  ring_mask_ = mask;
}

// --- Back.
// --------------------------------------------------------------------------------------------------------

void Worker::undo_from(Lp& lp, const Key& key) {
  if (key < gvt_) [[unlikely]]
    overtaken(key, lp.id);
  const int64_t traced = trace_.begin();
  Record* earliest = nullptr;
  uint32_t undone = 0;
  while (Record* record = record_at(lp.tail)) {
    Event* const event = record->event;
    if (event->key() < key) break;
    // restore() needs what the first event undone has saved; of the others nothing more.
    if (earliest != nullptr) {
      states_.release(lp, *earliest);
      records_.give(earliest);
    }
    lp.now = event->time;
    record_ = record;
    event_ = event;
    repeating_ = true;  // an inverse that sends does not
    states_.undo(lp, *record);
    repeating_ = false;
    record_ = nullptr;
    event_ = nullptr;
    cancel_all_sent(*record);
    ring_[lp.tail & ring_mask_].record = nullptr;
    lp.tail = record->previous;
    earliest = record;
    event->status = EventStatus::kWaiting;
    queue_.push({event->time, event});
    ++undone;
  }
  if (earliest == nullptr) return;
  failing_ = false;
  states_.restore(lp, *earliest);
  states_.release(lp, *earliest);
  lp.random = earliest->random;
  lp.sent = earliest->sent;
  records_.give(earliest);
  Record* const last = record_at(lp.tail);
  lp.now = last != nullptr ? last->event->time : kNone;
  while (tail_ > head_ && ring_[(tail_ - 1) & ring_mask_].record == nullptr) --tail_;
  ++counters_.rollbacks;
  counters_.rolled_back += undone;
  trace_.add(Trace::Kind::kRollback, traced, lp.id, key.time, undone);
}

void Worker::cancel_all_sent(Record& record) {
  for (Event* event = record.first_sent; event != nullptr;) {
    Event* const next = event->next_sent;  // before it is given away: its receiver may drop it
    cancel(event);
    event = next;
  }
  record.first_sent = nullptr;
}

void Worker::cancel(Event* event) {
  ++counters_.cancelled;
  if (!setup_.local(event->receiver)) [[unlikely]] {
    const Wire wire{event->time, event->order, event->sender, event->receiver, 0, 1};
    return setup_.transport->post(setup_.process_of(event->receiver), wire, nullptr);
  }
  const unsigned thread = setup_.thread_of(event->receiver);
  if (thread == number_) {
    to_cancel_.push_back(event);
    return;
  }
  party_.note(event->key());
  out_[thread]->push(event->time, event, true);
}

void Worker::handle_cancellations() {
  while (!to_cancel_.empty()) {
    Event* event = to_cancel_.back();
    to_cancel_.pop_back();
    cancel_here(event);
  }
}

void Worker::cancel_here(Event* event) {
  if (event->status == EventStatus::kExecuted) undo_from(setup_.lp(event->receiver), event->key());
  // The event is in the queue now, where it was or where undoing has put it.
  event->status = EventStatus::kCancelled;
  if (stuck_ && event->key() == stuck_key_) stuck_ = false;
}

// --- Final.
// -------------------------------------------------------------------------------------------------------

void Worker::collect(const Key& gvt) {
  const bool watched = setup_.model.commit != nullptr || setup_.options.digest != 0;
  Pool& own = events_[number_];
  uint64_t committed = 0;
  while (head_ != tail_) {
    const Slot& slot = ring_[head_ & ring_mask_];
    if (Record* const record = slot.record; record != nullptr) {
      if (slot.time >= gvt.time && (slot.time > gvt.time || !(record->event->key() < gvt))) break;
      // Mostly a record that is free by now, or empty: a hint costs nothing.
      __builtin_prefetch(ring_[(head_ + 4) & ring_mask_].record);
      ++committed;
      if (!watched && record->plain != 0 && record->from == number_) [[likely]] {
        states_.final_plain(*record);
        own.give(record->event);
        records_.give(record);
      } else {
        commit(*record);
      }
    }
    ++head_;
  }
  counters_.committed += committed;
}

void Worker::commit(Record& record) {
  Event* const event = record.event;
  if (setup_.model.commit != nullptr || setup_.options.digest != 0) [[unlikely]] {
    if (setup_.options.digest != 0) counters_.events_digest += digest_of(*event);
    if (setup_.model.commit != nullptr) {
      Lp& lp = setup_.lp(event->receiver);
      setup_.model.commit(&lp, event->time, event->message(), event->bytes);
    }
  }
  if (record.plain != 0) [[likely]] {
    states_.final_plain(record);
  } else if (states_.final(setup_.lp(event->receiver), record)) {
    return;  // drop() follows when a later copy is final
  }
  drop_event(event, record.from);
  records_.give(&record);
}

void Worker::drop(Record& record) {
  drop_event(record.event, record.from);
  records_.give(&record);
}

// Never: said and stopped, because the result would be wrong.
void Worker::overtaken(const Key& key, uint32_t receiver) {
  setup_.fail(CKPT_TW_MODEL, name_of(key, receiver) + ": global virtual time, " + std::to_string(gvt_.time) +
                                 ", had passed it: this is a bug of the engine");
}

void Worker::report_failure(const Key& key, uint32_t receiver) {
  setup_.fail(CKPT_TW_MODEL, name_of(key, receiver) + ": " + stuck_text_);
}

}  // namespace ckpt::timewarp
