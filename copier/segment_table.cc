#include "copier/segment_table.h"

#include <new>

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

bool SegmentTable::add_run(AddrRange run) {
  const auto region = static_cast<uint32_t>(regions_.size() - 1);
  for (Addr at = run.start; at < run.end;) {
    Addr base{at.value & ~(segment_bytes_ - 1)};
    Addr end = base + segment_bytes_ < run.end ? base + segment_bytes_ : run.end;
    uint64_t first = (at - base) / kPageSize, count = (end - at) / kPageSize;
    uint64_t mask = (count == 64 ? ~0ull : (1ull << count) - 1) << first;
    if (size_ > 0 && segments_[size_ - 1].base == base && segments_[size_ - 1].region == region) {
      segments_[size_ - 1].present |= mask;
    } else {
      if (size_ == capacity_) return false;
      Segment* s = new (&segments_[size_]) Segment;
      s->base = base;
      s->present = mask;
      s->region = region;
      ++size_;
    }
    at = end;
  }
  return true;
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
    if (segments_[mid].base + segment_bytes_ <= range.start) lo = mid + 1;
    else hi = mid;
  }
  first->value = static_cast<uint32_t>(lo);
  while (lo < size_ && segments_[lo].base < range.end) ++lo;
  last->value = static_cast<uint32_t>(lo);
}

bool SegmentTable::find(Addr a, SegmentId* id) const {
  Addr page = a.page_down();
  SegmentId first, last;
  find_range({page, page + kPageSize}, &first, &last);
  for (; first < last; ++first.value) {
    const Segment& s = segments_[first.value];
    if (s.base <= page && ((s.present >> ((page - s.base) / kPageSize)) & 1) != 0) {
      *id = first;
      return true;
    }
  }
  return false;
}

bool SegmentTable::claim(SegmentId id) {
  uint32_t expected = static_cast<uint32_t>(SegmentState::kProtected);
  // acquire on success: the table was filled before the threads that claim were told of it; relaxed on
  // failure: the loser looks at nothing but the state.
  return segments_[id.value].state.compare_exchange_strong(
      expected, static_cast<uint32_t>(SegmentState::kCopying), std::memory_order_acquire,
      std::memory_order_relaxed);
}

void SegmentTable::saved(SegmentId id) {
  // release: whoever finds the segment saved may let the memory go; our reads of it come before.
  segments_[id.value].state.store(static_cast<uint32_t>(SegmentState::kSaved), std::memory_order_release);
}

void SegmentTable::leave_copying(SegmentId id, SegmentState state) {
  // seq_cst against await_copied(): either it sees the new state, or we see that it waits.
  segments_[id.value].state.store(static_cast<uint32_t>(state), std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(segments_[id.value].state);
}

void SegmentTable::await_copied(SegmentId id) {
  FutexWord& state = segments_[id.value].state;
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t s; (s = state.load(std::memory_order_seq_cst)) <= static_cast<uint32_t>(SegmentState::kSaved);) {
    futex_wait(state, s);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace ckpt
