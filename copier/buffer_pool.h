// The bounded pool of segment-sized buffers (Li, Naughton, Plank 1989, "Real-Time Concurrent
// Checkpoint with Small Memory") in two classes, which the paper asks for in its conclusion: a
// reserve that only forced copies may take, so that a thread in a fault hardly ever waits for the
// disk, and the rest.
//
// Owner:     copier. acquire(): the copier, the thread that serves faults, threads under guard. release(): the
//            writer; whoever acquired a buffer and could not fill it.
// Rule when empty: the sequential copier waits while only the reserve is left; a forced copy waits
//            only when nothing at all is left. Both waits are counted.
// A copier that has waited goes on when there is room for a MiB, or an eighth of what it may use: woken for
// each buffer, it would change places with the writer for each, and unprotect each segment alone. That many
// come back without it: while the writer waits for its next batch it holds no more than half of them, and
// less than a batch is queued (WriterThread::run).
#pragma once

#include "base/arena.h"
#include "base/futex.h"

namespace ckpt {

enum class CopyKind { kSequential, kForced };

class BufferPool {
 public:
  // Address space for `bytes` of buffers; pages are touched as they are used and given back by trim().
  [[nodiscard]] bool reserve(size_t bytes, size_t buffer_bytes);
  // Touches the buffers that are used first, `bytes` of them, ahead of their use. They lie in huge pages,
  // where the machine has them to spare: fewer and longer requests are made of what lies side by side. The
  // others are left alone: to clear a huge page may take milliseconds, and whoever is the first to need a
  // buffer in it would wait for that.
  void populate(size_t bytes);
  // What populate() was asked for.
  AddrRange populated() const { return {buffers_, buffers_ + populated_}; }
  // Copies in order leave the other buffers alone: a few are used again and again, and stay in the cache.
  void limit_sequential(size_t buffers);
  void release_memory();
  void trim();
  AddrRange range() const { return memory_; }
  size_t buffers() const { return count_; }

  // Waits for a buffer. Returns its number.
  uint32_t acquire(CopyKind kind);
  // Without waiting; false: there is none.
  [[nodiscard]] bool try_acquire(CopyKind kind, uint32_t* buffer);
  void release(uint32_t buffer);
  std::byte* data(uint32_t buffer) const { return buffers_.as() + buffer * buffer_bytes_; }
  bool all_free() const { return free_count_.load(std::memory_order_acquire) == count_; }

  uint32_t sequential_waits() const { return sequential_waits_.load(std::memory_order_relaxed); }
  uint32_t forced_waits() const { return forced_waits_.load(std::memory_order_relaxed); }
  void reset_counters();

 private:
  AddrRange memory_{};
  Addr buffers_{};
  // Free buffers that are not for copies of this kind.
  uint32_t kept_from(CopyKind kind) const { return kind == CopyKind::kForced ? 0 : reserve_; }
  bool take(CopyKind kind, bool or_wait, uint32_t* buffer, uint32_t* seen);
  uint32_t worth_waking() const;

  size_t buffer_bytes_ = 0, populated_ = 0;
  uint32_t count_ = 0, reserve_ = 0;
  FutexLock lock_;             // guards stack_, wanted_ and changes of free_count_ and refilled_
  uint32_t* stack_ = nullptr;  // free buffers; the last given back is taken first, it is in the cache
  FutexWord free_count_{0};
  FutexWord sequential_waits_{0}, forced_waits_{0};
  FutexWord waiters_{0};   // forced copies that sleep on free_count_
  uint32_t wanted_ = 0;    // free buffers that copies in order sleep for; 0: none sleeps
  FutexWord refilled_{0};  // changes when there are so many
};

}  // namespace ckpt
