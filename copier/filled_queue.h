// Copied segments on their way from the copying threads to the writer.
//
// Owner:     copier. Callers: push(): any copying thread. pop(): the writer thread only.
// Bounded by the buffer pool: every entry holds a buffer, so there can be no more entries than buffers.
#pragma once

#include "base/locks/futex.h"
#include "base/memory/arena.h"
#include "base/memory/copied_segment.h"

namespace ckpt {

class FilledQueue {
 public:
  [[nodiscard]] bool reserve(Arena& arena, uint32_t buffers);
  void push(const CopiedSegment& segment);
  // No push will follow. Wakes the writer.
  void close();
  // Waits for at least `batch` entries or the end; takes up to max. 0: closed and empty.
  size_t pop(CopiedSegment* out, size_t batch, size_t max);

 private:
  FutexLock<LockRank::kFilledQueue> lock_;
  CopiedSegment* ring_ = nullptr;
  uint32_t capacity_ = 0, head_ = 0, count_ = 0;
  uint32_t wanted_ = 0;  // what the sleeping writer waits for; 0: not asleep
  bool closed_ = false;
  FutexWord changed_{0};
};

}  // namespace ckpt
