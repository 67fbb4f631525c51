#include "copier/buffer_pool.h"

#include <sys/mman.h>

namespace ckpt {

bool BufferPool::reserve(size_t bytes, size_t buffer_bytes) {
  size_t count = bytes / buffer_bytes;
  size_t table = (count * sizeof(uint32_t) + kPageSize - 1) & ~(kPageSize - 1);
  size_t total = count * buffer_bytes + table;
  long p = sys::call(__NR_mmap, 0L, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1L, 0L);
  if (sys::failed(p)) return false;
  memory_ = {Addr{static_cast<uint64_t>(p)}, Addr{static_cast<uint64_t>(p) + total}};
  // A child of the program has no use for it, and fork must not copy its page tables.
  sys::call(__NR_madvise, p, total, MADV_DONTFORK);
  buffer_bytes_ = buffer_bytes;
  count_ = static_cast<uint32_t>(count);
  reserve_ = count_ / 4;
  stack_ = (memory_.start + count * buffer_bytes).as<uint32_t>();
  for (uint32_t i = 0; i < count_; ++i) stack_[i] = count_ - 1 - i;
  free_count_.store(count_, std::memory_order_release);
  reset_counters();
  return true;
}

void BufferPool::release_memory() {
  if (!memory_.empty()) sys::call(__NR_munmap, memory_.start.value, memory_.size());
  memory_ = {};
  count_ = 0;
}

void BufferPool::trim() {
  if (!memory_.empty()) sys::call(__NR_madvise, memory_.start.value, count_ * buffer_bytes_, MADV_DONTNEED);
}

void BufferPool::reset_counters() {
  sequential_waits_.store(0, std::memory_order_relaxed);
  forced_waits_.store(0, std::memory_order_relaxed);
}

uint32_t BufferPool::acquire(CopyKind kind) {
  const uint32_t keep = kind == CopyKind::kForced ? 0 : reserve_;
  bool waited = false;
  for (;;) {
    uint32_t free;
    {
      ScopedLock lock(lock_);
      free = free_count_.load(std::memory_order_relaxed);
      if (free > keep) {
        uint32_t buffer = stack_[free - 1];
        free_count_.store(free - 1, std::memory_order_relaxed);
        return buffer;
      }
    }
    if (!waited) (kind == CopyKind::kForced ? forced_waits_ : sequential_waits_).fetch_add(1, std::memory_order_relaxed);
    waited = true;
    // seq_cst against release(): either it sees us waiting or futex_wait sees the new count.
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(free_count_, free);
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void BufferPool::release(uint32_t buffer) {
  {
    ScopedLock lock(lock_);
    uint32_t free = free_count_.load(std::memory_order_relaxed);
    stack_[free] = buffer;
    free_count_.store(free + 1, std::memory_order_seq_cst);
  }
  // Waiters of both classes sleep on the one word: wake all, the forced ones must not be missed.
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(free_count_);
}

}  // namespace ckpt
