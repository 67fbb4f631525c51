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
  uint32_t left = 0;
  scan_.begin(order_);
  for (SegmentId id; !lost() && scan_.next(&id);) {
    if (!to_copy(id) || table_.state(id) != SegmentState::kProtected) {
      copy_together(in_batches);  // to look for the next may take long
      continue;
    }
    if (left == 0) {
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
    if (together_count_ != 0 && (id.value != together_first_.value + together_count_ ||
                                 table_[id].region != table_[together_first_].region)) {
      copy_together(in_batches);
    }
    if (together_count_ == 0) together_first_ = id;
    together_buffers_[together_count_++] = spare[--left];
    if (together_count_ == wanted) copy_together(in_batches);
    counters_.sequential.fetch_add(1, std::memory_order_relaxed);
  }
  copy_together(in_batches);
  end_batch();
  while (left != 0) pool_.release(spare[--left]);
}

void Copier::copy_together(bool in_batches) {
  const uint32_t count = std::exchange(together_count_, 0);
  if (count == 0) return;
  const bool all = count > 1 && read_together(count);
  SegmentId id = together_first_;
  for (uint32_t i = 0; i < count; ++i, ++id.value) {
    const uint32_t buffer = together_buffers_[i];
    const bool got_bytes = all || read_runs(table_[id], pool_.data(buffer));
    if (got_bytes && in_batches)
      add_to_batch(id, buffer);
    else
      complete(id, buffer, got_bytes, leave_protected_);
  }
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
  if (batch_count_ != 0 && (id.value != batch_first_.value + batch_count_ ||
                            window.start != batch_range_.end || s.region != table_[batch_first_].region)) {
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
  if (batch_count_ == kMostInBatch || batch_range_.size() >= kBatchBytes) end_batch();
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
  id = batch_first_;
  for (uint32_t i = 0; i < batch_count_; ++i, ++id.value) {
    if (lost[i])
      pool_.release(batch_buffers_[i]);
    else
      queue_filled(id, batch_buffers_[i]);
  }
  batch_count_ = 0;
}

}  // namespace ckpt
