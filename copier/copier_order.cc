// The part of Copier that copies in order: several neighbours by one call, and unprotected by one.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/memory/page_runs.h"
#include "copier/copier.h"
#include "base/preload_rules.h"

namespace ckpt {

// Copies by the processor, all that has no other owner. in_batches: several segments are unprotected by one
// call.
void Copier::copy_in_order(bool in_batches) {
  const uint64_t wanted = std::clamp<uint64_t>(together_bytes_ / table_.segment_bytes(), 1, kMostTogether);
  // Buffers come before the claim: a thread that faults on a claimed segment must not wait for the disk.
  uint32_t spare[kMostTogether];
  uint32_t left = 0, taken = 0;  // taken: buffers of the segments that are claimed
  scan_.begin(order_);
  for (SegmentId id; !lost() && scan_.next(&id);) {
    if (!to_copy(id) || table_.state(id) != SegmentState::kProtected) {
      copy_together(in_batches);  // to look for the next may take long
      continue;
    }
    if (together_count_ == kMostTogether || (together_count_ != 0 && !follows_together(id)))
      copy_together(in_batches);
    bool shares = in_batches && shares_buffer(id);
    if (!shares && together_count_ != 0 && taken == wanted) copy_together(in_batches);
    if (!shares && left == 0) {
      left = pool_.try_acquire_some(CopyKind::kSequential, {spare, wanted});
      if (left == 0) {
        copy_together(in_batches);
        end_batch();
        spare[left++] = pool_.acquire(CopyKind::kSequential);
      }
      // Buffers that lie side by side are the kernel's other side as one piece: each piece is looked up
      // alone.
      std::sort(spare, spare + left, std::greater<>());
    }
    if (!table_.claim(id)) continue;
    if (together_count_ == 0) {
      together_first_ = id;
      taken = 0;
    }
    together_buffers_[together_count_] = shares ? together_buffers_[together_count_ - 1] : spare[--left];
    ++together_count_;
    taken += shares ? 0 : 1;
    counters_.sequential.fetch_add(1, std::memory_order_relaxed);
  }
  copy_together(in_batches);
  end_batch();
  while (left != 0) pool_.release(spare[--left]);
}

// May the segment be read by the call that reads those which are claimed already?
bool Copier::follows_together(SegmentId id) const {
  return id.value == together_first_.value + together_count_ &&
         table_.region(table_[id]).is_copied_like(table_.region(table_[together_first_]));
}

// Segments of mappings that are smaller than a segment lie in one buffer, each where it lies in memory: a
// buffer for each would be mostly empty, and the pool is bounded. Only if they adjoin, for these are never in
// two batches (add_to_batch).
bool Copier::shares_buffer(SegmentId id) const {
  if (together_count_ == 0) return false;
  const Segment& before = table_[SegmentId{id.value - 1}];
  return before.base == table_[id].base && table_.window(before).end == table_.window(table_[id]).start;
}

void Copier::copy_together(bool in_batches) {
  const uint32_t count = std::exchange(together_count_, 0);
  if (count == 0) return;
  const bool all = count > 1 && read_together(count);
  for (uint32_t i = 0; i < count;) {
    const uint32_t buffer = together_buffers_[i], first = i;
    bool got_bytes = true;
    for (; i < count && together_buffers_[i] == buffer; ++i)
      got_bytes = got_bytes && (all || read_runs(table_[together_at(i)], pool_.data(buffer)));
    for (uint32_t j = first; j < i; ++j) {
      if (got_bytes && in_batches)
        add_to_batch(together_at(j), buffer);
      else
        complete(together_at(j), j == first ? buffer : kNoBuffer, got_bytes, leave_protected_);
    }
  }
  // Not between two that share a buffer.
  if (batch_count_ + kMostTogether > kMostInBatch || batch_range_.size() >= kBatchBytes) end_batch();
}

// False: nothing is known of any of the buffers.
bool Copier::read_together(uint32_t count) {
  // Shared memory is read past a ledger, segment by segment (read_runs); copy_shared() has copied it already.
  if (is_of_job(table_[together_first_])) return false;
  CopyPiece pieces[kMostPieces];
  uint32_t used = 0;
  SegmentId id = together_first_;
  for (uint32_t i = 0; i < count; ++i, ++id.value) {
    const Segment& s = table_[id];
    for (PageRun run : PageRuns(s.present)) {
      if (used == kMostPieces) return false;
      pieces[used++] = {pool_.data(together_buffers_[i]) + run.offset(), s.base + run.offset(), run.bytes()};
    }
  }
  return memory_.read_pieces({pieces, used}, table_.region(table_[together_first_]).readable) == 0;
}

// Its bytes were read.
void Copier::add_to_batch(SegmentId id, uint32_t buffer) {
  Segment& s = table_[id];
  const AddrRange window = table_.window(s);
  if (batch_count_ != 0 &&
      (id.value != batch_first_.value + batch_count_ || window.start != batch_range_.end ||
       !table_.region(s).is_copied_like(table_.region(table_[batch_first_])))) {
    end_batch();
  }
  // A program that gives memory back unannounced may do so with pages that are saved, before end_batch() asks
  // whether they are unchanged. So ask now.
  if (told_.load(std::memory_order_relaxed) && is_unchanged(s))
    s.proven.store(true, std::memory_order_release);
  memory_.settle_events();  // as in complete()
  table_.saved(id);
  if (batch_count_ == 0) {
    batch_first_ = id;
    batch_range_ = window;
  }
  batch_range_.end = window.end;
  batch_buffers_[batch_count_++] = buffer;
  // A thread that needs the segment and finds it kSaved calls unprotect_saved() itself. A thread that came
  // earlier has left its mark.
  if (table_.is_wanted(id)) unprotect_saved(id);
}

bool Copier::batch_is_unchanged() {
  AddrRange run{};  // neighbours are asked for by one call
  auto ask = [&] { return run.empty() || memory_.still_protected(std::exchange(run, {})); };
  SegmentId id = batch_first_;
  for (uint32_t i = 0; i < batch_count_; ++i, ++id.value) {
    const Segment& s = table_[id];
    const bool proven = s.proven.load(std::memory_order_acquire);
    if (proven || s.open || table_.region(s).shared) {
      if (!ask() || (!proven && !is_unchanged(s))) return false;
      continue;
    }
    const AddrRange window = table_.window(s);
    if (run.empty()) run = window;
    run.end = window.end;
  }
  return ask();
}

// A thread needs a segment that is saved in a batch: unprotects it ahead of the batch. If its bytes are not
// proven, or unprotecting fails, the owner finds that in end_batch().
void Copier::unprotect_saved(SegmentId id) {
  if (!in_batches_.load(std::memory_order_relaxed) || !is_unchanged(table_[id])) return;
  table_[id].proven.store(true, std::memory_order_release);
  if (unprotect_segment(table_[id])) table_.settle(id);
}

void Copier::end_batch() {
  if (batch_count_ == 0) return;
  const bool same = batch_is_unchanged();
  const bool all = same && batch_count_ > 1 && memory_.unprotect_many(batch_range_) == 0;
  SegmentId id = batch_first_;
  bool lost[kMostInBatch];
  for (uint32_t i = 0; i < batch_count_; ++i, ++id.value) {
    const bool proven = same || is_unchanged(table_[id]);
    // Looked at again after a failure: unprotect_saved() may have unprotected the segment, as in complete().
    auto is_saved = [&] { return table_.state(id) == SegmentState::kSaved; };
    lost[i] = !all && is_saved() && (!unprotect_segment(table_[id]) || !proven) && is_saved();
    if (lost[i]) {
      set_lost(table_[id].base, kNotTheSame);
      table_.lose(id);
    } else {
      table_.finish(id);
    }
  }
  for (uint32_t i = 0; i < batch_count_;) {
    const uint32_t buffer = batch_buffers_[i], first = i;
    uint64_t pages = 0;
    for (; i < batch_count_ && batch_buffers_[i] == buffer; ++i)
      pages |= lost[i] ? 0 : table_[SegmentId{batch_first_.value + i}].present;
    queue_filled(table_[SegmentId{batch_first_.value + first}].base, pages, buffer);
  }
  batch_count_ = 0;
}

}  // namespace ckpt
