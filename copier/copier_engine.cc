// The part of Copier that hands copies in order to an engine, and takes them back.
#include "copier/copier.h"

#include "base/preload_rules.h"

namespace ckpt {

void Copier::copy_by_engine(CopyEngine& engine) {
  // Buffer and place in the engine's queue come before the claim: a thread that faults on a claimed segment
  // must not wait for the disk.
  constexpr uint32_t kNone = UINT32_MAX;
  uint32_t spare = kNone;
  scan_.begin(order_);
  for (SegmentId id; !lost() && scan_.next(&id);) {
    if (!to_copy(id) || table_.state(id) != SegmentState::kProtected) continue;
    if (spare == kNone) spare = pool_.acquire(CopyKind::kSequential);
    await_queued(kMostQueued - 1);
    if (!table_.claim(id)) continue;
    // The engine may refuse: its slots are in use until it has passed over what was taken back from it.
    if (!submit_to_engine(engine, id, spare)) copy_owned(id, spare, leave_protected_);
    spare = kNone;
    counters_.sequential.fetch_add(1, std::memory_order_relaxed);
  }
  if (spare != kNone) pool_.release(spare);
}

// False: the queue is full.
bool Copier::submit_to_engine(CopyEngine& engine, SegmentId id, uint32_t buffer) {
  {
    ScopedLock guard(queued_lock_);
    if (queued_count_ == kMostQueued) return false;
    queued_[queued_count_++] = {id, buffer, {}};
  }
  const Segment& s = table_[id];
  CopyTicket ticket;
  const CopyRequest request{id.value | uint64_t{buffer} << 32,
                            s.base,
                            pool_.data(buffer),
                            static_cast<uint32_t>(table_.segment_bytes()),
                            s.present,
                            table_.region(s).readable};
  const bool accepted = engine.submit(request, CopyPriority::kSequential, &ticket);
  {
    ScopedLock guard(queued_lock_);
    for (uint32_t i = 0; i < queued_count_; ++i) {
      if (queued_[i].id != id) continue;  // a copy that is done is not in the list any more
      if (accepted)
        queued_[i].ticket = ticket;
      else
        queued_[i] = queued_[--queued_count_];
      break;
    }
  }
  if (accepted && table_.is_wanted(id)) resync_segment(id);
  return accepted;
}

// A thread needs the segment now: if the engine has its copy, re-synchronises with it and completes it.
void Copier::resync_segment(SegmentId id) {
  Queued queued{};
  {
    ScopedLock guard(queued_lock_);
    for (uint32_t i = 0; i < queued_count_; ++i) {
      if (queued_[i].id == id) queued = queued_[i];
    }
  }
  if (queued.ticket.value == 0) return;
  const Resync outcome = engine_.load(std::memory_order_acquire)->resync(queued.ticket, threshold_);
  if (outcome == Resync::kDone) return;
  const bool got_bytes = outcome == Resync::kCommitted ||
                         (outcome == Resync::kAborted && read_runs(table_[id], pool_.data(queued.buffer)));
  copied(id.value | uint64_t{queued.buffer} << 32, got_bytes ? 0 : -1);
}

void Copier::copied(uint64_t cookie, long result) {
  const SegmentId id{static_cast<uint32_t>(cookie)};
  {
    ScopedLock guard(queued_lock_);
    for (uint32_t i = 0; i < queued_count_; ++i) {
      if (queued_[i].id == id) {
        queued_[i] = queued_[--queued_count_];
        break;
      }
    }
  }
  complete(id, static_cast<uint32_t>(cookie >> 32), result == 0, leave_protected_);
  completed_.fetch_add(1, std::memory_order_release);
  futex_wake(completed_);
}

// Waits until the engine has at most `most` copies.
void Copier::await_queued(uint32_t most) {
  for (;;) {
    const uint32_t before = completed_.load(std::memory_order_acquire);
    {
      ScopedLock guard(queued_lock_);
      if (queued_count_ <= most) return;
    }
    futex_wait(completed_, before);
  }
}

}  // namespace ckpt
