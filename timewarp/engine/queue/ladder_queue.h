// A ladder queue (Tang, Goh and Thng 2005, changed): time cut into buckets that are sorted only when their
// turn comes.
//
// Owner:     EventQueue.
// Callers:   one thread.
// Never:     touches an event, but to break a tie in time; what it sorts are entries of 16 bytes.
//
//   far_ ──rebuild()──► rungs_[0] ──a bucket too full──► rungs_[1] … ──empty_into_near()──► near_ (sorted)
//                                                                                           late_ (a heap)
// Events are taken from near_ and late_, whichever has the earliest.
// far_ holds what lies behind the last bucket, in no order. An event that belongs to a bucket already taken
// goes into late_: events that come too late, that are rolled back, or that are sent without much delay. The
// number of a bucket is computed from the time in one way only, and that way is monotone: so rounding never
// puts two events into the wrong order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "timewarp/engine/event.h"

namespace ckpt::timewarp {

struct Entry {
  double time;
  Event* event;
};

inline bool operator<(const Entry& a, const Entry& b) {
  return a.time < b.time || (a.time == b.time && *a.event < *b.event);
}
struct EntryAfter {
  bool operator()(const Entry& a, const Entry& b) const { return b < a; }
};

class LadderQueue {
 public:
  // prefetch: fetches the events of a bucket into the cache when its turn comes.
  explicit LadderQueue(bool prefetch = true) : prefetch_(prefetch) {}
  LadderQueue(const LadderQueue&) = delete;
  LadderQueue& operator=(const LadderQueue&) = delete;
  ~LadderQueue();

  void push(Entry entry) {
    ++size_;
    for (unsigned r = 0; r < rungs_used_; ++r) {
      Rung& rung = rungs_[r];
      const double position = (entry.time - rung.start) * rung.scale;
      if (!(position < rung.limit)) {
        if (r == 0) return far_.push_back(entry);
        // In the bucket of the rung above that this rung was made of, but behind all that was in it.
        if (rung.taken < rung.buckets) return put(rung, rung.buckets - 1, entry);
        continue;
      }
      if (position < -1) break;
      const int64_t bucket = static_cast<int64_t>(position);
      if (bucket >= rung.taken) return put(rung, bucket, entry);
      if (bucket < rung.taken - 1) break;
    }
    if (rungs_used_ == 0) return far_.push_back(entry);
    late_.push_back(entry);
    std::push_heap(late_.begin(), late_.end(), EntryAfter{});
  }
  Entry min() {
    if (near_at_ == near_.size() && late_.empty() && !refill()) {
      return {std::numeric_limits<double>::infinity(), nullptr};
    }
    if (late_.empty()) [[likely]]
      return near_[near_at_];
    if (near_at_ == near_.size() || late_.front() < near_[near_at_]) return late_.front();
    return near_[near_at_];
  }
  // Removes what min() has returned.
  void pop() {
    --size_;
    if (late_.empty()) [[likely]] {
      ++near_at_;
      return;
    }
    if (near_at_ == near_.size() || late_.front() < near_[near_at_]) {
      std::pop_heap(late_.begin(), late_.end(), EntryAfter{});
      late_.pop_back();
      return;
    }
    ++near_at_;
  }
  size_t size() const { return size_; }
  Event* ahead(size_t n) const { return near_at_ + n < near_.size() ? near_[near_at_ + n].event : nullptr; }

 private:
  static constexpr unsigned kRungs = 5;
  static constexpr uint32_t kInChunk = 15;

  struct Chunk {
    Entry entries[kInChunk];
    Chunk* next;
    uint64_t spare;
  };
  struct Bucket {
    Chunk* chunk = nullptr;  // the newest; the others are full
    uint32_t in_chunk = 0, count = 0;
  };
  // Bucket b holds the times t with b <= (t - start) * scale < b + 1. The buckets below `taken` have been
  // taken.
  struct Rung {
    double start = 0, scale = 0, limit = 0;
    int64_t buckets = 0, taken = 0;
    size_t count = 0;
    std::vector<Bucket> bucket;
  };

  void put(Rung& rung, int64_t number, Entry entry) {
    Bucket& bucket = rung.bucket[static_cast<size_t>(number)];
    if (bucket.chunk == nullptr || bucket.in_chunk == kInChunk) [[unlikely]]
      add_chunk(bucket);
    bucket.chunk->entries[bucket.in_chunk++] = entry;
    ++bucket.count;
    ++rung.count;
  }
  void add_chunk(Bucket& bucket);
  void empty_into_near(Bucket& bucket);
  bool refill();
  bool rebuild();
  void sort_near();
  // Lays the rung over [start, start + width) for about `count` entries.
  void lay(Rung& rung, double start, double width, size_t count);

  const bool prefetch_;
  size_t size_ = 0;
  std::vector<Entry> near_, late_, far_, scratch_;
  size_t near_at_ = 0;
  unsigned rungs_used_ = 0;
  Rung rungs_[kRungs];
  std::vector<Chunk*> free_chunks_;
  std::vector<Chunk*> slabs_;
};

}  // namespace ckpt::timewarp
