#include "copier/segment_table.h"

#include <bit>
#include <new>

#include "base/checks/check.h"
#include "base/memory/page_runs.h"
#include "base/preload_rules.h"

namespace ckpt {

bool SegmentTable::reserve(Arena& arena, uint64_t segment_bytes, size_t capacity, size_t regions) {
  segment_bytes_ = segment_bytes;
  size_ = 0;
  capacity_ = capacity;
  segments_ = static_cast<Segment*>(arena.allocate(capacity * sizeof(Segment), 64));
  regions_ = ArenaVector<Region>(arena);
  return segments_ != nullptr && regions_.reserve(regions == 0 ? 1 : regions);
}

bool SegmentTable::add_region(const Region& region) { return regions_.push_back(region); }

bool SegmentTable::add(AddrRange pages, bool present) {
  const auto region = static_cast<uint32_t>(regions_.size() - 1);
  for (Addr at = pages.start; at < pages.end;) {
    Addr base{at.value & ~(segment_bytes_ - 1)};
    AddrRange part{at, base + segment_bytes_ < pages.end ? base + segment_bytes_ : pages.end};
    if (size_ == 0 || segments_[size_ - 1].base != base || segments_[size_ - 1].region != region) {
      if (size_ == capacity_) return false;
      Segment* s = new (&segments_[size_]) Segment;
      s->base = base;
      s->region = region;
      ++size_;
    }
    if (present) segments_[size_ - 1].present |= page_mask(base, part);
    at = part.end;
  }
  return true;
}

bool SegmentTable::add_run(AddrRange run) { return add(run, true); }
bool SegmentTable::add_window(AddrRange window) { return add(window, false); }

uint64_t SegmentTable::page_mask(Addr base, AddrRange pages) const {
  const uint64_t from = pages.start < base ? 0 : (pages.start - base) / kPageSize;
  const uint64_t to =
      pages.end > base + segment_bytes_ ? segment_bytes_ / kPageSize : (pages.end - base) / kPageSize;
  return first_pages(to - from) << from;
}

void SegmentTable::set_present(AddrRange run) {
  SegmentId id, last;
  for (find_range(run, &id, &last); id < last; ++id.value) {
    AddrRange w = window(segments_[id.value]);
    AddrRange part{run.start > w.start ? run.start : w.start, run.end < w.end ? run.end : w.end};
    if (!part.empty()) segments_[id.value].present |= page_mask(segments_[id.value].base, part);
  }
}

void SegmentTable::clear_present(AddrRange run) {
  SegmentId id, last;
  for (find_range(run, &id, &last); id < last; ++id.value) {
    AddrRange w = window(segments_[id.value]);
    AddrRange part{run.start > w.start ? run.start : w.start, run.end < w.end ? run.end : w.end};
    if (!part.empty()) segments_[id.value].present &= ~page_mask(segments_[id.value].base, part);
  }
}

bool SegmentTable::is_present(Addr page) const {
  SegmentId id;
  return find(page, &id) &&
         (segments_[id.value].present >> ((page - segments_[id.value].base) / kPageSize) & 1) != 0;
}

bool SegmentTable::has_pages_around(Addr page) const {
  SegmentId id;
  return find(page, &id) && segments_[id.value].present != 0;
}

uint64_t SegmentTable::bytes_to_copy() const {
  uint64_t pages = 0;
  for (size_t i = 0; i < size_; ++i) {
    if (!segments_[i].in_parent) pages += static_cast<uint64_t>(std::popcount(segments_[i].present));
  }
  return pages * kPageSize;
}

bool SegmentTable::merge(Arena& arena, const SegmentTable& other) {
  if (other.size_ == 0) return true;
  auto* all = static_cast<Segment*>(arena.allocate((size_ + other.size_) * sizeof(Segment), 64));
  if (all == nullptr) return false;
  const auto shift = static_cast<uint32_t>(regions_.size());
  if (!regions_.append(other.regions_.data(), other.regions_.size())) return false;
  for (size_t i = 0, j = 0, n = 0; n < size_ + other.size_; ++n) {
    // Both tables may have a segment with this base, of different regions: their order does not matter.
    const bool ours = j == other.size_ || (i < size_ && segments_[i].base <= other.segments_[j].base);
    const Segment& from = ours ? segments_[i++] : other.segments_[j++];
    Segment* s = new (&all[n]) Segment;
    s->base = from.base;
    s->present = from.present;
    s->region = ours ? from.region : from.region + shift;
    s->in_parent = from.in_parent;
    s->open = from.open;
    s->heat = from.heat;
    s->state.store(from.state.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  segments_ = all;
  size_ = capacity_ = size_ + other.size_;
  return true;
}

void SegmentTable::replace_by(const SegmentTable& other) {
  segments_ = other.segments_;
  size_ = other.size_;
  capacity_ = other.capacity_;
  regions_ = other.regions_;
}

AddrRange SegmentTable::window(const Segment& s) const {
  const Region& r = regions_[s.region];
  Addr start = s.base < r.range.start ? r.range.start : s.base;
  Addr end = s.base + segment_bytes_;
  return {start, end < r.range.end ? end : r.range.end};
}

void SegmentTable::find_range(AddrRange range, SegmentId* first, SegmentId* last) const {
  // First segment whose window ends after range.start; several of different regions may share a base.
  size_t lo = 0, hi = size_;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (segments_[mid].base + segment_bytes_ <= range.start)
      lo = mid + 1;
    else
      hi = mid;
  }
  first->value = static_cast<uint32_t>(lo);
  while (lo < size_ && segments_[lo].base < range.end) ++lo;
  last->value = static_cast<uint32_t>(lo);
}

bool SegmentTable::find(Addr a, SegmentId* id) const {
  SegmentId last;
  for (find_range({a, a + 1}, id, &last); *id < last; ++id->value) {
    if (window(segments_[id->value]).contains(a)) return true;
  }
  return false;
}

bool SegmentTable::change(SegmentId id, SegmentState from, SegmentState to) {
  auto expected = static_cast<uint32_t>(from);
  // acq_rel: neither side's protecting or unprotecting moves across.
  return segments_[id.value].state.compare_exchange_strong(
      expected, static_cast<uint32_t>(to), std::memory_order_acq_rel, std::memory_order_relaxed);
}

bool SegmentTable::written(SegmentId id) {
  if (!change(id, SegmentState::kProtected, SegmentState::kWritten)) return false;
  Segment& s = segments_[id.value];
  s.in_parent = false;
  if (s.heat != UINT8_MAX) ++s.heat;
  return true;
}

bool SegmentTable::unsettled(SegmentId id) {
  segments_[id.value].in_parent = false;
  return segments_[id.value].state.exchange(static_cast<uint32_t>(SegmentState::kUnsettled),
                                            std::memory_order_acq_rel) ==
         static_cast<uint32_t>(SegmentState::kProtected);
}

bool SegmentTable::protect(SegmentId id) {
  return change(id, SegmentState::kWritten, SegmentState::kProtected);
}

bool SegmentTable::claim(SegmentId id) {
  uint32_t expected = static_cast<uint32_t>(SegmentState::kProtected);
  // seq_cst on success: the table was filled before the threads that claim were told of it, and state() has
  // the other half; relaxed on failure: the loser looks at nothing but the state.
  return segments_[id.value].state.compare_exchange_strong(
      expected, static_cast<uint32_t>(SegmentState::kCopying), std::memory_order_seq_cst,
      std::memory_order_relaxed);
}

void SegmentTable::saved(SegmentId id) {
  // release: a thread that finds the segment saved may let the memory go; our reads of it come before.
  // An addition: want() may have left its mark.
  static_assert(static_cast<uint32_t>(SegmentState::kSaved) ==
                static_cast<uint32_t>(SegmentState::kCopying) + 1);
  const uint32_t before = segments_[id.value].state.fetch_add(1, std::memory_order_release);
  CHECK_EQ(before & ~kWanted, static_cast<uint32_t>(SegmentState::kCopying));
}

void SegmentTable::settle(SegmentId id) {
  FutexWord& word = segments_[id.value].state;
  uint32_t now = word.load(std::memory_order_acquire);
  while ((now & ~kWanted) == static_cast<uint32_t>(SegmentState::kSaved)) {
    // seq_cst: as in leave_copying().
    if (!word.compare_exchange_weak(now, static_cast<uint32_t>(SegmentState::kCopied),
                                    std::memory_order_seq_cst))
      continue;
    if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(word);
    return;
  }
}

bool SegmentTable::leave_protected(SegmentId id) {
  auto expected = static_cast<uint32_t>(SegmentState::kSaved);
  // seq_cst: as in leave_copying(), and against want(): it marks the segment before, or finds it kUnchanged.
  if (!segments_[id.value].state.compare_exchange_strong(
          expected, static_cast<uint32_t>(SegmentState::kUnchanged), std::memory_order_seq_cst)) {
    return false;
  }
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(segments_[id.value].state);
  return true;
}

SegmentState SegmentTable::want(SegmentId id) {
  FutexWord& word = segments_[id.value].state;
  uint32_t now = word.load(std::memory_order_acquire);
  for (;;) {
    const auto state = static_cast<SegmentState>(now & ~kWanted);
    uint32_t wanted = now;
    if (state == SegmentState::kCopying || state == SegmentState::kSaved) wanted = now | kWanted;
    if (state == SegmentState::kUnchanged) wanted = static_cast<uint32_t>(SegmentState::kCopied);
    if (wanted == now || word.compare_exchange_weak(now, wanted, std::memory_order_seq_cst)) return state;
  }
}

void SegmentTable::leave_copying(SegmentId id, SegmentState state) {
  // kCopied: a thread that needed the saved segment has settled it ahead of its owner.
  ASSERT(this->state(id) == SegmentState::kCopying || this->state(id) == SegmentState::kSaved ||
         this->state(id) == SegmentState::kCopied);
  // seq_cst against await_copied(): either it sees the new state, or we see that it waits.
  segments_[id.value].state.store(static_cast<uint32_t>(state), std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(segments_[id.value].state);
}

void SegmentTable::await_copied(SegmentId id) {
  FutexWord& state = segments_[id.value].state;
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t s; ((s = state.load(std::memory_order_seq_cst)) & ~kWanted) <=
                   static_cast<uint32_t>(SegmentState::kSaved);) {
    futex_wait(state, s);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace ckpt
