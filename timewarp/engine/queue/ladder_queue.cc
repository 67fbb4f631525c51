#include "timewarp/engine/queue/ladder_queue.h"

#include <cmath>

namespace ckpt::timewarp {

namespace {
// Entries a bucket is planned for; more than kSplit and it becomes a rung of its own.
constexpr size_t kPlanned = 16, kSplit = 512, kChunksInSlab = 256;
constexpr int64_t kMostBuckets = 1 << 20;
}  // namespace

LadderQueue::~LadderQueue() {
  for (Chunk* slab : slabs_) delete[] slab;
}

void LadderQueue::add_chunk(Bucket& bucket) {
  if (free_chunks_.empty()) {
    Chunk* slab = new Chunk[kChunksInSlab];
    slabs_.push_back(slab);
    for (size_t i = kChunksInSlab; i-- > 0;) free_chunks_.push_back(slab + i);
  }
  Chunk* chunk = free_chunks_.back();
  free_chunks_.pop_back();
  chunk->next = bucket.chunk;
  bucket.chunk = chunk;
  bucket.in_chunk = 0;
}

void LadderQueue::lay(Rung& rung, double start, double width, size_t count) {
  rung.buckets = std::clamp<int64_t>(static_cast<int64_t>(count / kPlanned), 1, kMostBuckets);
  rung.start = start;
  rung.scale = static_cast<double>(rung.buckets) / width;
  rung.limit = static_cast<double>(rung.buckets);
  rung.taken = 0;
  rung.count = 0;
  if (rung.bucket.size() < static_cast<size_t>(rung.buckets))
    rung.bucket.resize(static_cast<size_t>(rung.buckets));
}

void LadderQueue::empty_into_near(Bucket& bucket) {
  uint32_t n = bucket.in_chunk;
  for (Chunk* chunk = bucket.chunk; chunk != nullptr;) {
    near_.insert(near_.end(), chunk->entries, chunk->entries + n);
    n = kInChunk;
    Chunk* next = chunk->next;
    free_chunks_.push_back(chunk);
    chunk = next;
  }
  bucket = {};
}

bool LadderQueue::rebuild() {
  if (far_.empty()) return false;
  double low = far_[0].time, high = low, sum = 0;
  for (const Entry& e : far_) {
    low = std::min(low, e.time);
    high = std::max(high, e.time);
  }
  for (const Entry& e : far_) sum += e.time - low;
  const double mean = sum / static_cast<double>(far_.size());
  // Twice the mean: where times thin out, what lies behind waits in far_ for the next time.
  const double width = std::min(2 * mean, high - low);
  rungs_used_ = 1;
  Rung& rung = rungs_[0];
  lay(rung, low, width, far_.size());
  if (!std::isfinite(rung.scale)) {
    // All at one time: sort them at once. Later events go to far_, events that still come at this time to
    // late_.
    lay(rung, low, 1, 1);
    rung.scale = 1e300;
    rung.taken = 1;
    scratch_.clear();
    for (const Entry& e : far_) (e.time == low ? near_ : scratch_).push_back(e);
    far_.swap(scratch_);
    sort_near();
    return true;
  }
  size_t remaining = 0;
  for (const Entry& e : far_) {
    const double position = (e.time - rung.start) * rung.scale;
    if (position < rung.limit) {
      put(rung, static_cast<int64_t>(position), e);
    } else {
      far_[remaining++] = e;
    }
  }
  far_.resize(remaining);
  return true;
}

bool LadderQueue::refill() {
  near_.clear();
  near_at_ = 0;
  for (;;) {
    if (rungs_used_ == 0 || (rungs_used_ == 1 && rungs_[0].count == 0)) {
      if (!rebuild()) return false;
      if (!near_.empty()) return true;
      continue;
    }
    Rung& rung = rungs_[rungs_used_ - 1];
    if (rung.count == 0) {
      // An event that still comes for this rung is smaller than all of the rung above: it will go to late_.
      --rungs_used_;
      continue;
    }
    while (rung.bucket[static_cast<size_t>(rung.taken)].count == 0) ++rung.taken;
    Bucket& bucket = rung.bucket[static_cast<size_t>(rung.taken++)];
    rung.count -= bucket.count;
    empty_into_near(bucket);
    if (near_.size() > kSplit && rungs_used_ < kRungs) {
      double low = near_[0].time, high = low;
      for (const Entry& e : near_) {
        low = std::min(low, e.time);
        high = std::max(high, e.time);
      }
      Rung& finer = rungs_[rungs_used_];
      lay(finer, low, high - low, near_.size());
      if (std::isfinite(finer.scale) && finer.buckets > 1) {
        ++rungs_used_;
        for (const Entry& e : near_) {
          const double position = (e.time - finer.start) * finer.scale;
          put(finer, std::min(static_cast<int64_t>(position), finer.buckets - 1), e);
        }
        near_.clear();
        continue;
      }
    }
    if (prefetch_) {
      // The events arrive while the entries are sorted.
      for (const Entry& e : near_) __builtin_prefetch(e.event, 1);
    }
    sort_near();
    return true;
  }
}

void LadderQueue::sort_near() {
  if (near_.size() > 48) {
    std::sort(near_.begin(), near_.end());
    return;
  }
  for (size_t i = 1; i < near_.size(); ++i) {
    const Entry e = near_[i];
    size_t at = i;
    for (; at > 0 && e < near_[at - 1]; --at) near_[at] = near_[at - 1];
    near_[at] = e;
  }
}

}  // namespace ckpt::timewarp
