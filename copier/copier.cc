#include "copier/copier.h"

#include <bit>
#include <utility>

#include "base/checks/check.h"
#include "base/memory/page_runs.h"
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

// Calls use(run) for each run of pages that exist, until use() returns false. Returns its last result.
template <typename Use>
bool each_run(const Segment& s, Use&& use) {
  for (PageRun run : PageRuns(s.present)) {
    if (!use(run.at(s.base))) return false;
  }
  return true;
}

}  // namespace

bool Copier::read_runs(Segment& s, std::byte* to) {
  if (is_of_job(s)) {
    const AddrRange window = table_.window(s);
    return shared_->read(to + (window.start - s.base), window);
  }
  const bool readable = table_.region(s).readable;
  return each_run(s, [&](AddrRange run) {
    return memory_.read(to + (run.start - s.base), run.start, run.size(), readable) == 0;
  });
}

// False: some of its pages, if it has any, are not the memory that was protected.
bool Copier::unprotect_segment(const Segment& s) {
  if (is_of_job(s)) shared_->save_for_others(table_.window(s));
  // Of shared memory is_unchanged() asks nothing.
  const bool proves = memory_.unprotecting_proves() || table_.region(s).shared;
  auto unprotect = [&](AddrRange range) {
    return (proves ? memory_.unprotect_many(range) : memory_.unprotect(range)) == 0;
  };
  if (unprotect(table_.window(s))) return true;
  if (s.present == 0) return false;
  // A part of the window that never belonged to the image may be gone: unprotect only what does.
  return each_run(s, unprotect);
}

bool Copier::is_unchanged(const Segment& s) {
  // Other processes may write to shared memory past our protection: nothing to ask. Of an open segment only
  // the pages that are copied are protected.
  const bool same = table_.region(s).shared ||
                    (s.open ? each_run(s, [&](AddrRange run) { return memory_.still_protected(run); })
                            : memory_.still_protected(table_.window(s)));
  // acquire: a thread that has unprotected the segment meanwhile (unprotect_saved) had asked before, and says
  // so here.
  return same || s.proven.load(std::memory_order_acquire);
}

void Copier::unprotect_uncopied(SegmentId id) {
  Segment& s = table_[id];
  // Once run() has checked the protection of all segments, nothing is left to prove. The end of the
  // checkpoint may be taking the protection off. seq_cst: our claim() comes before this load. Either the load
  // sees rest_checked_, or run() sees the claim and waits for us.
  const bool same = rest_checked_.load(std::memory_order_seq_cst) || is_unchanged(s);
  if (!unprotect_segment(s)) memory_.wake(table_.window(s));
  // Memory is unchanged until its remove event is read: drain all events before judging. An event that was on
  // its way has been read, for unprotect() waits for that.
  memory_.settle_events();
  if (!same && !s.given_back.load(std::memory_order_relaxed)) set_lost(s.base, kNotTheSame);
  table_.finish(id);
}

void Copier::check_rest(SegmentId first, SegmentId last) {
  auto check = [&](SegmentId id) {
    // Only an unclaimed segment proves anything: an owner has already unprotected its segment, or was told
    // that the memory goes.
    if (!is_unchanged(table_[id]) && table_.claim(id)) unprotect_uncopied(id);
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

uint32_t Copier::forced_buffer() {
  return pool_.acquire_forced([](void* memory) { static_cast<ProgramMemory*>(memory)->read_events(); },
                              &memory_);
}

// The caller has claimed the segment.
void Copier::copy_owned(SegmentId id, uint32_t buffer, bool leave_protected) {
  Segment& s = table_[id];
  std::byte* data = pool_.data(buffer);
  complete(id, buffer, read_runs(s, data), leave_protected);
}

void Copier::complete(SegmentId id, uint32_t buffer, bool got_bytes, bool leave_protected) {
  Segment& s = table_[id];
  got_bytes = got_bytes && CHECK(buffer != kNoBuffer);
  const bool same = got_bytes && is_unchanged(s);
  // removed() of an event that was read before our bytes finds the segment in kCopying, and loses it. An
  // event that is read later frees memory of which we have the bytes.
  memory_.settle_events();
  if (got_bytes) table_.saved(id);
  // leave_protected() comes after the question whether the segment is unchanged: an event that is read in
  // between want()s the segment, and leave_protected() fails.
  const bool still_protected = leave_protected && same && !s.open && table_.leave_protected(id);
  // A thread that unprotected the segment before us (unprotect_saved) has made it kCopied, and had proven it.
  // The program may have gone on since, and unmapped it.
  const bool still_ours =
      still_protected || unprotect_segment(s) || table_.state(id) == SegmentState::kCopied;
  if (!same || !still_ours) {
    if (buffer != kNoBuffer) pool_.release(buffer);
    set_lost(s.base, got_bytes ? kNotTheSame : "it cannot be read");
    table_.lose(id);
    return;
  }
  if (!still_protected) table_.finish(id);
  queue_filled(s.base, s.present, buffer);
}

// Gives the copy of pages of the segment at `base` to the writer, without those of zeros. They are writable
// by now, so that no thread of the program waits for this.
void Copier::queue_filled(Addr base, uint64_t pages, uint32_t buffer) {
  std::byte* data = pool_.data(buffer);
  uint64_t mask = pages;
  for_each_page(pages, [&](uint32_t page) {
    if (!page_is_zero(data + size_t{page} * kPageSize)) return;
    mask &= ~(1ull << page);
    counters_.zero_pages.fetch_add(1, std::memory_order_relaxed);
  });
  if (mask == 0) {
    pool_.release(buffer);
    return;
  }
  queue_.push({base, mask, data, buffer});
}

bool Copier::run(bool leave_protected) {
  leave_protected_ = leave_protected;
  CopyEngine* const engine = engine_.load(std::memory_order_relaxed);
  const bool in_batches = !leave_protected && engine == nullptr && memory_.may_unprotect_late();
  in_batches_.store(in_batches, std::memory_order_relaxed);
  if (!copy_shared()) return false;
  if (engine != nullptr)
    copy_by_engine(*engine);
  else
    copy_in_order(in_batches);
  check_rest({0}, {static_cast<uint32_t>(table_.size())});
  rest_checked_.store(true, std::memory_order_seq_cst);
  await_queued(0);
  for (SegmentId id{0}; id.value < table_.size() && !lost(); ++id.value) {
    // The owner of a segment that is not to be copied may yet find that it is not as at the stop.
    if (to_copy(id) || table_.state(id) == SegmentState::kCopying) table_.await_copied(id);
  }
  return !lost();
}

void Copier::fault(Addr a) {
  counters_.faults.fetch_add(1, std::memory_order_relaxed);
  SegmentId id;
  Addr page = a.page_down();
  if (!table_.find(a, &id)) {
    // In no segment: nothing to copy.
    if (memory_.unprotect({page, page + kPageSize}) != 0) memory_.wake({page, page + kPageSize});
    return;
  }
  if (table_.claim(id)) {
    if (!to_copy(id)) {
      // Memory that the program begins to use after the stop, or that the parent's image has.
      return unprotect_uncopied(id);
    }
    copy_owned(id, forced_buffer());
    counters_.forced.fetch_add(1, std::memory_order_relaxed);
    scan_.faulted(id);
    return;
  }
  // Another thread owns the segment, or it is done. The owner's unprotect() wakes the faulting thread. A
  // fault that was queued before that, and is read only now, may have missed it: then we wake the thread.
  const SegmentState state = table_.want(id);
  if (state == SegmentState::kCopying) resync_segment(id);
  if (state == SegmentState::kSaved) unprotect_saved(id);
  if (state == SegmentState::kUnchanged && unprotect_segment(table_[id])) return;
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
        copy_owned(id, forced_buffer());
        counters_.forced.fetch_add(1, std::memory_order_relaxed);
        scan_.faulted(id);
      } else {
        // Memory that this image does not have. Part of the window may be another mapping by now: a failure
        // means nothing.
        unprotect_segment(s);
        table_.finish(id);
      }
    } else if (table_.want(id) < SegmentState::kCopied) {
      if (table_.state(id) == SegmentState::kSaved) unprotect_saved(id);
      table_.await_copied(id);
    }
    // A segment that is lost may still be protected: unprotect it, for the program must go on.
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
  counters_.all_waits_ns.fetch_add(waited_ns, std::memory_order_relaxed);
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
    // Whoever saves it: another member may read it yet.
    const SegmentState state = table_.state(id);
    if (is_of_job(table_[id]) && state != SegmentState::kCopied && state != SegmentState::kLost &&
        shared_->needed())
      return true;
    if (table_[id].in_parent && table_.state(id) == SegmentState::kProtected &&
        !rest_checked_.load(std::memory_order_relaxed))
      return true;
  }
  return false;
}

bool Copier::shared_range(size_t i, AddrRange* range) const {
  for (const Region& r : table_.regions()) {
    if (!r.shared || (shared_ != nullptr && r.of_job) || i-- != 0) continue;
    *range = r.range;
    return true;
  }
  return false;
}

void Copier::before_release(AddrRange range) {
  SegmentId id, last;
  table_.find_range(range, &id, &last);
  // Once the memory has gone nobody can tell whether it was still as in the parent's image. relaxed: a
  // late look costs one question to the kernel.
  if (!rest_checked_.load(std::memory_order_relaxed)) check_rest(id, last);
  for (; id < last; ++id.value) {
    if (!to_copy(id)) {
      if (is_of_job(table_[id]) && table_.claim(id)) unprotect_uncopied(id);
      continue;
    }
    if (table_.claim(id)) {
      copy_owned(id, forced_buffer());
      counters_.released.fetch_add(1, std::memory_order_relaxed);
    }
    // No await_copied(): the owner may wait for us to read an event, which meanwhile() does.
    for (SegmentState state; (state = table_.state(id)) < SegmentState::kCopied;) {
      if (state == SegmentState::kSaved)
        unprotect_saved(id);
      else
        resync_segment(id);
      memory_.meanwhile();
    }
    // Of shared memory nothing may be given back, or written to by another mapping, before the others can
    // have it.
    if (is_of_job(table_[id]) && table_.want(id) == SegmentState::kUnchanged) unprotect_segment(table_[id]);
    memory_.meanwhile();
  }
}

void Copier::removed(AddrRange range) {
  SegmentId id, last;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    if (!table_.window(table_[id]).overlaps(range)) continue;
    // In every state: from here on its protection proves nothing. relaxed: unprotect_uncopied() looks at it
    // after settle_events(), which orders the two; the next checkpoint looks when no event can come.
    table_[id].given_back.store(true, std::memory_order_relaxed);
    told_.store(true, std::memory_order_relaxed);
    const SegmentState state = table_.want(id);
    // Unless its bytes are kept for the others, which they are in kCopied: they may be gone, or be written to
    // unseen.
    if (is_of_job(table_[id]) && state != SegmentState::kCopied && shared_->needed()) shared_->give_up();
    if (!to_copy(id)) {
      if (table_.claim(id)) table_.finish(id);
      continue;
    }
    // Saved before the event was read, hence before the memory went. A copy in any other state may be torn.
    if (state == SegmentState::kSaved || state == SegmentState::kCopied || state == SegmentState::kUnchanged)
      continue;
    set_lost(table_[id].base, "it was given back unannounced");
    return;
  }
}

}  // namespace ckpt
