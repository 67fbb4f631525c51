#include "copier/filled_queue.h"

#include "base/checks/check.h"
#include "base/preload_rules.h"

namespace ckpt {

bool FilledQueue::reserve(Arena& arena, uint32_t buffers) {
  ring_ = static_cast<CopiedSegment*>(arena.allocate(sizeof(CopiedSegment) * buffers, 64));
  capacity_ = buffers;
  head_ = count_ = wanted_ = 0;
  closed_ = false;
  return ring_ != nullptr;
}

void FilledQueue::push(const CopiedSegment& segment) {
  bool wake;
  {
    ScopedLock lock(lock_);
    // The ring has room for each buffer of the pool. A push into a full ring would overwrite the oldest.
    if (!CHECK(count_ < capacity_)) return;
    ring_[(head_ + count_) % capacity_] = segment;
    ++count_;
    // Waking costs more than copying a page: wake the writer when it has a batch to write.
    wake = wanted_ != 0 && count_ >= wanted_;
    if (wake) {
      wanted_ = 0;
      changed_.fetch_add(1, std::memory_order_release);
    }
  }
  if (wake) futex_wake(changed_, 1);
}

void FilledQueue::close() {
  {
    ScopedLock lock(lock_);
    closed_ = true;
    changed_.fetch_add(1, std::memory_order_release);
  }
  futex_wake(changed_, 1);
}

size_t FilledQueue::pop(CopiedSegment* out, size_t batch, size_t max) {
  for (;;) {
    uint32_t seen;
    {
      ScopedLock lock(lock_);
      if (count_ >= batch || (closed_ && count_ > 0)) {
        size_t n = count_ < max ? count_ : max;
        for (size_t i = 0; i < n; ++i) out[i] = ring_[(head_ + i) % capacity_];
        head_ = (head_ + static_cast<uint32_t>(n)) % capacity_;
        count_ -= static_cast<uint32_t>(n);
        return n;
      }
      if (closed_) return 0;
      wanted_ = static_cast<uint32_t>(batch);
      seen = changed_.load(std::memory_order_relaxed);
    }
    futex_wait(changed_, seen);
  }
}

}  // namespace ckpt
