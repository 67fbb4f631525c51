// The bounded pool of segment-sized buffers (Li, Naughton, Plank 1989, "Real-Time Concurrent
// Checkpoint with Small Memory") in two classes, which the paper asks for in its conclusion: a
// reserve that only forced copies may take, so that a thread in a fault hardly ever waits for the
// disk, and the rest.
//
// The thread that serves faults goes on reading events while it waits for a buffer. Without that all could
// wait in a circle: an event that is not read keeps the copier from unprotecting, and the copier keeps its
// buffers until it has. A small pool has no others, for the queue and the sink keep theirs until the next
// batch.
//
// Owner:     copier. Callers: acquire(): the copier. acquire_forced(): the thread that serves faults, threads
//            under guard. interrupt(): a thread that copies and does not serve.
//            release(): the writer; a copying thread whose copy failed or held only zeros.
// Rule when empty: the sequential copier waits while only the reserve is left; a forced copy waits
//            only when nothing at all is left. Both waits are counted.
// A sequential copier that waits is woken when a MiB of its share is free, or an eighth of the share if that
// is less. Woken for each buffer, it would change places with the writer for each, and unprotect each segment
// by a call of its own. This wait ends only if a writer that itself waits, for its next batch, leaves so many
// free: what the sink holds (two thirds of the share), a batch less one (a sixth) and what the copier is
// woken for (an eighth) are together less than the share. batch() and most_held() see to that.
#pragma once

#include <span>

#include "base/locks/futex.h"
#include "base/memory/arena.h"

namespace ckpt {

enum class CopyKind { kSequential, kForced };

class BufferPool {
 public:
  static constexpr size_t kAheadBytes = 6 << 20;  // of limit_sequential()

  // Address space for `bytes` of buffers. A page takes memory from its first use until release_memory().
  [[nodiscard]] bool reserve(size_t bytes, size_t buffer_bytes);
  // Instead of that: the memory of a pool of the same size and kind, that was handed over. touched: part of
  // it that is populated already.
  static size_t memory_bytes(size_t bytes, size_t buffer_bytes);
  void adopt(AddrRange memory, AddrRange touched, size_t bytes, size_t buffer_bytes);
  // The memory is the caller's from here on; no buffer is in use. *touched: the buffers that were populated.
  AddrRange hand_over(AddrRange* touched);
  // Touches the buffers that are used first, `bytes` of them, ahead of their use. These buffers lie in huge
  // pages where the machine has some to spare: what lies side by side is written with fewer and longer
  // requests. The other buffers are left in small pages. To clear a huge page may take milliseconds, for
  // which the first thread to need a buffer in it would wait.
  void populate(size_t bytes);
  // The buffers that populate() was asked for.
  AddrRange populated() const { return {buffers_, buffers_ + populated_}; }
  // Sequential copies use few buffers from here on, at most 6 MiB: the same again and again stay in the
  // cache.
  void limit_sequential();
  // For so many copies the writer waits, if more are to come; and so many buffers the sink may hold until
  // they are written. With limit_sequential() and without it.
  size_t batch() const;
  size_t most_held() const;
  void release_memory();
  AddrRange range() const { return memory_; }
  size_t buffers() const { return count_; }

  // Waits for a buffer. Returns its number.
  uint32_t acquire(CopyKind kind);
  // The same for a forced copy, by a thread for which others may wait: calls meanwhile(self) before each
  // sleep. interrupt() ends the sleep, so that meanwhile() is called once more.
  uint32_t acquire_forced(void (*meanwhile)(void*), void* self);
  void interrupt();
  // Without waiting, as many as are free, up to buffers.size(); how many that were.
  uint32_t try_acquire_some(CopyKind kind, std::span<uint32_t> buffers);
  void release(uint32_t buffer);
  std::byte* data(uint32_t buffer) const { return buffers_.as() + buffer * buffer_bytes_; }
  bool all_free() const { return free_count_.load(std::memory_order_acquire) == count_; }

  uint32_t sequential_waits() const { return sequential_waits_.load(std::memory_order_relaxed); }
  uint32_t forced_waits() const { return forced_waits_.load(std::memory_order_relaxed); }
  // The time of these waits, ns.
  int64_t sequential_wait_ns() const { return sequential_wait_ns_.load(std::memory_order_relaxed); }
  int64_t forced_wait_ns() const { return forced_wait_ns_.load(std::memory_order_relaxed); }
  void reset_counters();

 private:
  AddrRange memory_{};
  Addr buffers_{};
  // Free buffers that copies of this kind must leave.
  uint32_t reserved_from(CopyKind kind) const { return kind == CopyKind::kForced ? 0 : reserve_; }
  void begin(size_t bytes, size_t buffer_bytes);
  bool take(CopyKind kind, uint32_t* buffer, uint32_t* seen);
  uint32_t worth_waking() const;
  uint32_t acquire(CopyKind kind, void (*meanwhile)(void*), void* self);
  uint32_t limited_share() const;

  size_t buffer_bytes_ = 0, populated_ = 0;
  uint32_t count_ = 0, reserve_ = 0;
  FutexLock<LockRank::kBufferPool> lock_;  // guards stack_, wanted_ and changes of free_count_ and refilled_
  uint32_t* stack_ = nullptr;  // free buffers; the last given back is taken first, it is in the cache
  FutexWord free_count_{0};
  FutexWord sequential_waits_{0}, forced_waits_{0};
  std::atomic<int64_t> sequential_wait_ns_{0}, forced_wait_ns_{0};
  FutexWord changed_{0};   // changes with each release() and interrupt()
  FutexWord waiters_{0};   // forced copies that sleep on changed_
  uint32_t wanted_ = 0;    // free buffers that the sequential copier sleeps for; 0: it does not sleep
  FutexWord refilled_{0};  // changes when so many are free
};

}  // namespace ckpt
