// Memory of our own, straight from the kernel: the only allocator inside the victim.
//
// Owner:     whoever creates it; freed as a whole. An Arena never touches malloc.
// Callers:   one thread at a time (the checkpoint agent), also while the world is stopped.
// Never:     moves what it gave out. A vector that outgrows its capacity takes a new block from the
//            arena and leaves the old one behind until reset().
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/memory/own_place.h"
#include "base/sys.h"
#include "base/units.h"

namespace ckpt {

// Reserves `capacity` bytes of address space; pages are touched as they are used.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { release(); }

  // capacity in bytes, rounded up to pages. False when the address space limit forbids it. near: an address
  // at which the kernel is to try first; 0: map_own().
  [[nodiscard]] bool reserve(size_t capacity, uint64_t near = 0) {
    capacity = (capacity + kPageSize - 1) & ~(kPageSize - 1);
    constexpr int kProtection = PROT_READ | PROT_WRITE, kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const long p = near == 0 ? map_own(capacity, kProtection, kFlags)
                             : sys::call(__NR_mmap, near, capacity, kProtection, kFlags, -1L, 0L);
    if (sys::failed(p)) return false;
    base_ = reinterpret_cast<std::byte*>(p);
    capacity_ = capacity;
    used_ = 0;
    return true;
  }
  // Instead of reserve(): a block that another arena has handed over.
  void adopt(AddrRange block) {
    base_ = block.start.as<std::byte>();
    capacity_ = block.size();
    used_ = 0;
  }
  // The block is the caller's from here on. *touched: what was allocated of it.
  AddrRange hand_over(AddrRange* touched) {
    const AddrRange block = range();
    *touched = {block.start, block.start + used_};
    base_ = nullptr;
    capacity_ = used_ = 0;
    return block;
  }
  void release() {
    if (base_ != nullptr) sys::call(__NR_munmap, base_, capacity_);
    base_ = nullptr;
    capacity_ = used_ = 0;
  }
  // Forgets all that was allocated; keeps the address range, gives the pages back.
  void reset() {
    if (base_ != nullptr) sys::call(__NR_madvise, base_, used_, MADV_DONTNEED);
    used_ = 0;
  }

  // nullptr when full. Zeroed.
  void* allocate(size_t bytes, size_t align = 16) {
    size_t at = (used_ + align - 1) & ~(align - 1);
    if (base_ == nullptr || bytes > capacity_ || at > capacity_ - bytes) return nullptr;
    used_ = at + bytes;
    return base_ + at;
  }
  // Touches the pages of the next `bytes` now, so that allocating them later costs nothing. A hint.
  void populate(size_t bytes) {
    const size_t from = (used_ + kPageSize - 1) & ~(kPageSize - 1);
    if (base_ == nullptr || from >= capacity_) return;
    if (bytes > capacity_ - from) bytes = capacity_ - from;
    sys::call(__NR_madvise, base_ + from, bytes, 23L /* MADV_POPULATE_WRITE of Linux 5.14 */);
  }
  AddrRange range() const { return {Addr::of(base_), Addr::of(base_) + capacity_}; }
  size_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

// A growable array of trivially copyable elements in an Arena. push_back returns false when the
// arena is full: callers must check.
template <typename T>
class ArenaVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  ArenaVector() = default;
  explicit ArenaVector(Arena& arena) : arena_(&arena) {}

  [[nodiscard]] bool reserve(size_t n) {
    if (n <= capacity_) return true;
    T* grown = static_cast<T*>(arena_->allocate(n * sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
    if (grown == nullptr) return false;
    if (size_ > 0) std::memcpy(static_cast<void*>(grown), data_, size_ * sizeof(T));
    data_ = grown;
    capacity_ = n;
    return true;
  }
  [[nodiscard]] bool push_back(const T& value) {
    if (size_ == capacity_ && !reserve(capacity_ == 0 ? 64 : capacity_ * 2)) return false;
    data_[size_++] = value;
    return true;
  }
  [[nodiscard]] bool append(const T* values, size_t n) {
    if (size_ + n > capacity_) {
      size_t want = capacity_ == 0 ? 64 : capacity_ * 2;
      if (!reserve(want > size_ + n ? want : size_ + n)) return false;
    }
    if (n > 0) std::memcpy(static_cast<void*>(data_ + size_), values, n * sizeof(T));
    size_ += n;
    return true;
  }
  // `n` values in the place of those from `first` to before `last`. `values` are not this vector's own.
  [[nodiscard]] bool replace(size_t first, size_t last, const T* values, size_t n) {
    const size_t behind = size_ - last;
    if (!reserve(first + n + behind)) return false;
    if (behind > 0) std::memmove(static_cast<void*>(data_ + first + n), data_ + last, behind * sizeof(T));
    if (n > 0) std::memcpy(static_cast<void*>(data_ + first), values, n * sizeof(T));
    size_ = first + n + behind;
    return true;
  }
  void clear() { size_ = 0; }
  void truncate(size_t n) {
    if (n < size_) size_ = n;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& back() { return data_[size_ - 1]; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }

 private:
  Arena* arena_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace ckpt
