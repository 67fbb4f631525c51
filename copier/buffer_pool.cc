#include "copier/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/checks/check.h"
#include "base/clock.h"
#include "base/memory/own_place.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {
constexpr size_t kHugePage = 2 << 20;     // bytes
constexpr size_t kWorthWaking = 1 << 20;  // bytes: what is unprotected at once
constexpr size_t kHeldBytes = BufferPool::kAheadBytes / 3 * 2;
}  // namespace

size_t BufferPool::memory_bytes(size_t bytes, size_t buffer_bytes) {
  const size_t count = bytes / buffer_bytes;
  const size_t table = (count * sizeof(uint32_t) + kPageSize - 1) & ~(kPageSize - 1);
  return count * buffer_bytes + table + kHugePage;
}

bool BufferPool::reserve(size_t bytes, size_t buffer_bytes) {
  const size_t total = memory_bytes(bytes, buffer_bytes);
  const long p = map_own(total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (sys::failed(p)) return false;
  populated_ = 0;
  memory_ = {Addr{static_cast<uint64_t>(p)}, Addr{static_cast<uint64_t>(p) + total}};
  // A child of the program has no use for it, and fork must not copy its page tables.
  sys::call(__NR_madvise, p, total, MADV_DONTFORK);
  begin(bytes, buffer_bytes);
  return true;
}

void BufferPool::adopt(AddrRange memory, AddrRange touched, size_t bytes, size_t buffer_bytes) {
  memory_ = memory;
  begin(bytes, buffer_bytes);
  populated_ = touched.size();
}

AddrRange BufferPool::hand_over(AddrRange* touched) {
  *touched = populated();
  const AddrRange memory = std::exchange(memory_, {});
  release_memory();
  return memory;
}

// memory_ is there.
void BufferPool::begin(size_t bytes, size_t buffer_bytes) {
  const size_t count = bytes / buffer_bytes;
  buffers_ = Addr{(memory_.start.value + kHugePage - 1) & ~(kHugePage - 1)};
  buffer_bytes_ = buffer_bytes;
  count_ = static_cast<uint32_t>(count);
  reserve_ = count_ / 4;
  stack_ = (buffers_ + count * buffer_bytes).as<uint32_t>();
  for (uint32_t i = 0; i < count_; ++i) stack_[i] = count_ - 1 - i;
  free_count_.store(count_, std::memory_order_release);
  reset_counters();
}

void BufferPool::release_memory() {
  if (!memory_.empty()) sys::call(__NR_munmap, memory_.start.value, memory_.size());
  memory_ = {};
  count_ = 0;
  populated_ = 0;
}

// The sequential share under limit_sequential(), in buffers.
uint32_t BufferPool::limited_share() const {
  return static_cast<uint32_t>(std::clamp<size_t>(kAheadBytes / buffer_bytes_, 1, count_ - count_ / 4));
}

void BufferPool::limit_sequential() { reserve_ = count_ - limited_share(); }

size_t BufferPool::batch() const {
  constexpr size_t kMost = 16;
  return std::clamp<size_t>(limited_share() / 6, 1, kMost);
}

size_t BufferPool::most_held() const { return std::min<size_t>(count_ / 4, kHeldBytes / buffer_bytes_); }

void BufferPool::populate(size_t bytes) {
  const size_t all = count_ * buffer_bytes_;
  bytes = std::min((bytes + kPageSize - 1) & ~(kPageSize - 1), all & ~(kPageSize - 1));
  if (bytes <= populated_) return;
  // Best effort: where there are no huge pages ordinary ones do, and what cannot be touched now is touched
  // when it is used.
  sys::call(__NR_madvise, buffers_.value, bytes, MADV_HUGEPAGE);
  sys::call(__NR_madvise, buffers_.value, bytes, MADV_POPULATE_WRITE);
  populated_ = bytes;
}

void BufferPool::reset_counters() {
  sequential_waits_.store(0, std::memory_order_relaxed);
  forced_waits_.store(0, std::memory_order_relaxed);
  sequential_wait_ns_.store(0, std::memory_order_relaxed);
  forced_wait_ns_.store(0, std::memory_order_relaxed);
}

// In buffers.
uint32_t BufferPool::worth_waking() const {
  return static_cast<uint32_t>(
      std::clamp<size_t>(kWorthWaking / buffer_bytes_, 1, std::max((count_ - reserve_) / 8, 1u)));
}

// False: there is no buffer. `seen` then is the value of the word to sleep on: of changed_ for a forced
// copy, of refilled_ for a sequential one, for which wanted_ is set.
bool BufferPool::take(CopyKind kind, uint32_t* buffer, uint32_t* seen) {
  ScopedLock lock(lock_);
  const uint32_t free = free_count_.load(std::memory_order_relaxed);
  if (free <= reserved_from(kind)) {
    *seen = (kind == CopyKind::kForced ? changed_ : refilled_).load(std::memory_order_relaxed);
    if (kind == CopyKind::kSequential) wanted_ = reserve_ + worth_waking();
    return false;
  }
  *buffer = stack_[free - 1];
  free_count_.store(free - 1, std::memory_order_relaxed);
  return true;
}

uint32_t BufferPool::try_acquire_some(CopyKind kind, std::span<uint32_t> buffers) {
  ScopedLock lock(lock_);
  uint32_t free = free_count_.load(std::memory_order_relaxed), taken = 0;
  while (taken < buffers.size() && free > reserved_from(kind)) buffers[taken++] = stack_[--free];
  free_count_.store(free, std::memory_order_relaxed);
  return taken;
}

uint32_t BufferPool::acquire(CopyKind kind) { return acquire(kind, nullptr, nullptr); }

uint32_t BufferPool::acquire_forced(void (*meanwhile)(void*), void* self) {
  return acquire(CopyKind::kForced, meanwhile, self);
}

void BufferPool::interrupt() {
  // seq_cst: as in release(). Where nobody waits this is one addition.
  changed_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(changed_);
}

uint32_t BufferPool::acquire(CopyKind kind, void (*meanwhile)(void*), void* self) {
  const bool forced = kind == CopyKind::kForced;
  int64_t since = 0;  // ns; 0: it has not waited
  for (;;) {
    uint32_t seen, buffer;
    if (take(kind, &buffer, &seen)) {
      if (since != 0)
        (forced ? forced_wait_ns_ : sequential_wait_ns_)
            .fetch_add(now_ns() - since, std::memory_order_relaxed);
      return buffer;
    }
    if (since == 0) {
      since = now_ns();
      (forced ? forced_waits_ : sequential_waits_).fetch_add(1, std::memory_order_relaxed);
    }
    if (!forced) {
      futex_wait(refilled_, seen);
      continue;
    }
    // `seen` is older than this call: after an interrupt() from here on futex_wait() does not sleep.
    if (meanwhile != nullptr) meanwhile(self);
    // seq_cst: either release() and interrupt() see this waiter, or futex_wait() sees their change.
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(changed_, seen);
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void BufferPool::release(uint32_t buffer) {
  bool refilled;
  {
    ScopedLock lock(lock_);
    uint32_t free = free_count_.load(std::memory_order_relaxed);
    if (!CHECK(free < count_)) return;  // given back twice
    stack_[free] = buffer;
    free_count_.store(free + 1, std::memory_order_release);  // all_free()
    changed_.fetch_add(1, std::memory_order_seq_cst);
    refilled = wanted_ != 0 && free + 1 >= wanted_;
    if (refilled) {
      wanted_ = 0;
      // relaxed: this only ends the copier's sleep; take() finds the buffers under the lock.
      refilled_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  // One buffer wakes one thread: of thousands that wait for forced copies all but one would look in vain. If
  // another thread takes the buffer first, its release() wakes the next.
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(changed_, 1);
  if (refilled) futex_wake(refilled_);
}

}  // namespace ckpt
