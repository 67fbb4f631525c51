#include "copier/copier.h"

#include <bit>
#include <utility>

#include "base/page_runs.h"
#include "base/preload_rules.h"

namespace ckpt {

bool page_is_zero(const std::byte* p) {
  auto* w = reinterpret_cast<const uint64_t*>(p);
  // Most pages differ in the first words: look there first, then at a cache line at a time.
  if (w[0] != 0) return false;
  for (size_t i = 0; i < kPageSize / 8; i += 8) {
    if ((w[i] | w[i + 1] | w[i + 2] | w[i + 3] | w[i + 4] | w[i + 5] | w[i + 6] | w[i + 7]) != 0)
      return false;
  }
  return true;
}

namespace {

constexpr const char* kNotTheSame = "it is not the memory that was protected";

// Calls use(run) for each run of pages that exist, until it returns false; what it returned last.
template <typename Use>
bool each_run(const Segment& s, Use&& use) {
  for (PageRun run : PageRuns(s.present)) {
    if (!use(run.at(s.base))) return false;
  }
  return true;
}

}  // namespace

bool Copier::read_runs(Segment& s, std::byte* to) {
  const bool readable = table_.region(s).readable;
  return each_run(s, [&](AddrRange run) {
    return memory_.read(to + (run.start - s.base), run.start, run.size(), readable) == 0;
  });
}

// False: some of its pages, if it has any, are not the memory that was protected.
bool Copier::unprotect_segment(const Segment& s) {
  if (memory_.unprotect(table_.window(s)) == 0) return true;
  if (s.present == 0) return false;
  // Part of the window that never belonged to the image may be gone: ask for just what does.
  return each_run(s, [&](AddrRange run) { return memory_.unprotect(run) == 0; });
}

bool Copier::is_unchanged(const Segment& s) {
  // Others may write to shared memory past our protection; where pages lie that are never protected, what is
  // to be copied is.
  const bool same = table_.region(s).shared ||
                    (s.open ? each_run(s, [&](AddrRange run) { return memory_.still_protected(run); })
                            : memory_.still_protected(table_.window(s)));
  // acquire: who has taken the protection off meanwhile had asked before.
  return same || s.proven.load(std::memory_order_acquire);
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

void Copier::let_be_written(SegmentId id) {
  Segment& s = table_[id];
  // When run() has asked for all of them nothing is left to prove, and protection may be coming off from
  // under us. seq_cst: claim() comes before. Either this sees that, or run() sees the claim and waits.
  const bool same = rest_checked_.load(std::memory_order_seq_cst) || is_unchanged(s);
  if (!unprotect_segment(s)) memory_.wake(table_.window(s));
  // What goes with an event was as at the stop until then. One that was on its way has been read: unprotect()
  // waits for that.
  memory_.settle_events();
  if (!same && !s.given_back.load(std::memory_order_relaxed)) set_lost(s.base, kNotTheSame);
  table_.finish(id);
}

void Copier::check_rest(SegmentId first, SegmentId last) {
  constexpr uint64_t kAtOnce = 64 << 20;  // bytes asked for by one call: who maps memory waits for it
  auto check = [&](SegmentId id) {
    // Who owns one, or has, has taken its protection off or been told that it goes.
    if (!is_unchanged(table_[id]) && table_.claim(id)) let_be_written(id);
  };
  AddrRange run{};
  SegmentId run_first{0};
  auto ask = [&](SegmentId end) {
    if (run.empty() || memory_.still_protected(std::exchange(run, {}))) return;
    for (SegmentId id = run_first; id < end; ++id.value) check(id);
  };
  for (SegmentId id = first; id < last && !lost(); ++id.value) {
    const Segment& s = table_[id];
    const AddrRange window = table_.window(s);
    const bool asked_for =
        !to_copy(id) && !table_.region(s).shared && table_.state(id) == SegmentState::kProtected;
    if (!asked_for || s.open || window.start != run.end || run.size() >= kAtOnce) ask(id);
    if (!asked_for) continue;
    if (s.open) {
      check(id);
      continue;
    }
    if (run.empty()) {
      run = window;
      run_first = id;
    }
    run.end = window.end;
  }
  ask(last);
}

void Copier::set_lost(Addr a, const char* how) {
  lost_how_.store(how, std::memory_order_relaxed);
  lost_at_.store(a.value, std::memory_order_relaxed);
  lost_.store(true, std::memory_order_release);
}

// The caller owns the segment. Order: see segment_table.h.
void Copier::copy_owned(SegmentId id, uint32_t buffer, bool keep) {
  Segment& s = table_[id];
  std::byte* data = pool_.data(buffer);
  complete(id, buffer, read_runs(s, data), keep);
}

void Copier::complete(SegmentId id, uint32_t buffer, bool got_bytes, bool keep) {
  Segment& s = table_[id];
  const bool same = got_bytes && is_unchanged(s);
  // An event that was read before our bytes were finds the segment in kCopying, and loses it; one that
  // is read later lets memory go whose bytes we have.
  memory_.settle_events();
  if (got_bytes) table_.saved(id);
  // Asking before keep(): an event that is read in between is one that want()s the segment.
  const bool kept = keep && same && !s.open && table_.keep(id);
  // Who let it go before us (let_go) has proven it; the program may have gone on, and unmapped it.
  const bool still_ours = kept || unprotect_segment(s) || table_.state(id) == SegmentState::kCopied;
  if (!same || !still_ours) {
    pool_.release(buffer);
    set_lost(s.base, got_bytes ? kNotTheSame : "it cannot be read");
    table_.lose(id);
    return;
  }
  if (!kept) table_.finish(id);
  hand_in(id, buffer);
}

// After the segment is writable: the program need not wait for this. `present` is ours alone: readers of
// the table look at it only to find segments, and a page found absent needs no copy.
void Copier::hand_in(SegmentId id, uint32_t buffer) {
  const Segment& s = table_[id];
  std::byte* data = pool_.data(buffer);
  uint64_t mask = s.present;
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    int page = std::countr_zero(left);
    if (page_is_zero(data + static_cast<size_t>(page) * kPageSize)) {
      mask &= ~(1ull << page);
      counters_.zero_pages.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (mask == 0) {
    pool_.release(buffer);
    return;
  }
  queue_.push({s.base, mask, data, buffer});
}

void Copier::copy_in_batch(SegmentId id, uint32_t buffer) {
  Segment& s = table_[id];
  const AddrRange window = table_.window(s);
  if (batch_count_ != 0 && (id.value != batch_first_.value + batch_count_ ||
                            window.start != batch_range_.end || s.region != table_[batch_first_].region)) {
    end_batch();
  }
  if (!read_runs(s, pool_.data(buffer))) return complete(id, buffer, false, false);
  // When end_batch() asks, a program that gives memory back unannounced may have taken the pages of what is
  // saved.
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
  // Who found it kSaved lets it go himself; who was earlier has left the mark.
  if (table_.is_wanted(id)) let_go(id);
  if (batch_count_ == kMostInBatch || batch_range_.size() >= kBatchBytes) end_batch();
}

// Saved in a batch: somebody waits for it. What proves its bytes is what does in complete(); a failure is for
// the owner to find.
void Copier::let_go(SegmentId id) {
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
    // Looked at once more: as in complete().
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
      hand_in(id, batch_buffers_[i]);
  }
  batch_count_ = 0;
}

bool Copier::run(bool keep) {
  keep_ = keep;
  const bool in_batches =
      !keep && engine_.load(std::memory_order_relaxed) == nullptr && memory_.may_unprotect_late();
  in_batches_.store(in_batches, std::memory_order_relaxed);
  CopyEngine* const engine = engine_.load(std::memory_order_relaxed);
  // Buffer and place in the queue come first: a claimed segment must not wait for the disk, nor a thread that
  // faults on it.
  constexpr uint32_t kNone = UINT32_MAX;
  uint32_t spare = kNone;
  scan_.begin(order_);
  for (SegmentId id; !lost() && scan_.next(&id);) {
    if (!to_copy(id) || table_.state(id) != SegmentState::kProtected) continue;
    if (spare == kNone && !pool_.try_acquire(CopyKind::kSequential, &spare)) {
      end_batch();
      spare = pool_.acquire(CopyKind::kSequential);
    }
    await_queued(kMostQueued - 1);
    if (!table_.claim(id)) continue;
    // The engine may still be passing over what was taken back from it.
    if (in_batches)
      copy_in_batch(id, spare);
    else if (engine == nullptr || !hand_over(*engine, id, spare))
      copy_owned(id, spare, keep);
    spare = kNone;
    counters_.sequential.fetch_add(1, std::memory_order_relaxed);
  }
  end_batch();
  if (spare != kNone) pool_.release(spare);
  check_rest({0}, {static_cast<uint32_t>(table_.size())});
  rest_checked_.store(true, std::memory_order_seq_cst);
  await_queued(0);
  for (SegmentId id{0}; id.value < table_.size() && !lost(); ++id.value) {
    // Who has one that is not copied may yet find that it is not as at the stop.
    if (to_copy(id) || table_.state(id) == SegmentState::kCopying) table_.await_copied(id);
  }
  return !lost();
}

void Copier::fault(Addr a) {
  counters_.faults.fetch_add(1, std::memory_order_relaxed);
  SegmentId id;
  Addr page = a.page_down();
  if (!table_.find(a, &id)) {
    // In no segment: just let the thread write.
    if (memory_.unprotect({page, page + kPageSize}) != 0) memory_.wake({page, page + kPageSize});
    return;
  }
  if (table_.claim(id)) {
    if (!to_copy(id)) {
      // Memory that the program begins to use after the stop, or that the image before has.
      return let_be_written(id);
    }
    copy_owned(id, pool_.acquire(CopyKind::kForced));
    counters_.forced.fetch_add(1, std::memory_order_relaxed);
    scan_.faulted(id);
    return;
  }
  // Someone owns it, or it is done. The owner's unprotect wakes the thread, unless the fault was queued
  // before it and read after it: then the thread waits for a wake-up that has already been.
  const SegmentState state = table_.want(id);
  if (state == SegmentState::kCopying) take_back(id);
  if (state == SegmentState::kSaved) let_go(id);
  if (state == SegmentState::kKept && unprotect_segment(table_[id])) return;
  if (state >= SegmentState::kCopied) {
    if (memory_.unprotect({page, page + kPageSize}) != 0) memory_.wake({page, page + kPageSize});
  }
}

bool Copier::make_writable(AddrRange range) {
  bool writable = true;
  SegmentId id, last;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    Segment& s = table_[id];
    if (!table_.window(s).overlaps(range)) continue;
    if (table_.claim(id)) {
      if (to_copy(id)) {
        copy_owned(id, pool_.acquire(CopyKind::kForced));
        counters_.forced.fetch_add(1, std::memory_order_relaxed);
        scan_.faulted(id);
      } else {
        // Memory that the image does not have. Part of the window may be another mapping by now.
        unprotect_segment(s);
        table_.finish(id);
      }
    } else if (table_.want(id) < SegmentState::kCopied) {
      if (table_.state(id) == SegmentState::kSaved) let_go(id);
      table_.await_copied(id);
    }
    // Lost, perhaps because it could not be unprotected: once more, for the program must go on.
    if (table_.state(id) == SegmentState::kLost)
      writable = memory_.unprotect(table_.window(s)) == 0 && writable;
  }
  return writable;
}

bool Copier::tracks(Addr page, bool* copied) const {
  SegmentId id;
  if (!table_.find(page, &id)) return false;
  *copied = table_.state(id) >= SegmentState::kCopied;
  return true;
}

void Copier::note_fault(uint64_t waited_ns) {
  counters_.faults.fetch_add(1, std::memory_order_relaxed);
  note_wait(waited_ns);
}

void Copier::note_wait(uint64_t waited_ns) {
  uint64_t longest = counters_.longest_wait_ns.load(std::memory_order_relaxed);
  while (longest < waited_ns &&
         !counters_.longest_wait_ns.compare_exchange_weak(longest, waited_ns, std::memory_order_relaxed)) {
  }
}

void Copier::unprotect_rest() {
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    if (table_.claim(id)) {
      memory_.unprotect(table_.window(table_[id]));
      table_.finish(id);
    } else if (table_.state(id) == SegmentState::kLost) {
      memory_.unprotect(table_.window(table_[id]));
    }
  }
}

bool Copier::holds(AddrRange range) const {
  SegmentId id, last;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    if (to_copy(id) && table_.state(id) < SegmentState::kCopied) return true;
    if (table_[id].in_parent && table_.state(id) == SegmentState::kProtected &&
        !rest_checked_.load(std::memory_order_relaxed))
      return true;
  }
  return false;
}

bool Copier::shared_range(size_t i, AddrRange* range) const {
  for (const Region& r : table_.regions()) {
    if (!r.shared || i-- != 0) continue;
    *range = r.range;
    return true;
  }
  return false;
}

void Copier::before_release(AddrRange range) {
  SegmentId id, last;
  table_.find_range(range, &id, &last);
  // When it has gone nobody can tell whether the image may inherit it. relaxed: seen late it costs a
  // question.
  if (!rest_checked_.load(std::memory_order_relaxed)) check_rest(id, last);
  for (; id < last; ++id.value) {
    if (!to_copy(id)) continue;
    if (table_.claim(id)) {
      copy_owned(id, pool_.acquire(CopyKind::kForced));
      counters_.released.fetch_add(1, std::memory_order_relaxed);
    }
    // Not await_copied(): the owner may wait for us to read an event.
    for (SegmentState state; (state = table_.state(id)) < SegmentState::kCopied;) {
      if (state == SegmentState::kSaved)
        let_go(id);
      else
        take_back(id);
      memory_.meanwhile();
    }
    memory_.meanwhile();
  }
}

void Copier::removed(AddrRange range) {
  SegmentId id, last;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    if (!table_.window(table_[id]).overlaps(range)) continue;
    // Whatever its state: from here on its protection proves nothing. relaxed: looked at when no event can
    // come.
    table_[id].given_back.store(true, std::memory_order_relaxed);
    told_.store(true, std::memory_order_relaxed);
    const SegmentState state = table_.want(id);
    if (!to_copy(id)) {
      if (table_.claim(id)) table_.finish(id);
      continue;
    }
    // Saved before the event was read, hence before the memory went; anything else may be torn.
    if (state == SegmentState::kSaved || state == SegmentState::kCopied || state == SegmentState::kKept)
      continue;
    set_lost(table_[id].base, "it was given back unannounced");
    return;
  }
}

}  // namespace ckpt
