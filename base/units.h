// Units that must not be mixed: addresses in the checkpointed process, lengths in pages, segments,
// and offsets in an image are different types.
//
// Owner: base. Header only. Callers: any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace ckpt {

inline constexpr uint64_t kPageSize = 4096;  // bytes; the only base page size of x86-64

// An address in the checkpointed process.
struct Addr {
  uint64_t value = 0;
  friend constexpr auto operator<=>(Addr, Addr) = default;
  constexpr Addr operator+(uint64_t bytes) const { return {value + bytes}; }
  constexpr uint64_t operator-(Addr other) const { return value - other.value; }
  constexpr Addr page_down() const { return {value & ~(kPageSize - 1)}; }
  constexpr Addr page_up() const { return {(value + kPageSize - 1) & ~(kPageSize - 1)}; }
  template <typename T = std::byte>
  T* as() const {
    return reinterpret_cast<T*>(value);
  }
  static Addr of(const void* p) { return {reinterpret_cast<uint64_t>(p)}; }
};

// [start, end), in the checkpointed process.
struct AddrRange {
  Addr start, end;
  friend constexpr bool operator==(const AddrRange&, const AddrRange&) = default;
  constexpr uint64_t size() const { return end - start; }
  constexpr bool empty() const { return end <= start; }
  constexpr bool contains(Addr a) const { return start <= a && a < end; }
  constexpr bool overlaps(const AddrRange& o) const { return start < o.end && o.start < end; }
  // What lies in both; empty if nothing does.
  constexpr AddrRange common(const AddrRange& o) const {
    return {start > o.start ? start : o.start, end < o.end ? end : o.end};
  }
};

// Index into the segment table of one checkpoint.
struct SegmentId {
  uint32_t value = 0;
  friend constexpr auto operator<=>(SegmentId, SegmentId) = default;
};

// Byte offset in an image file.
struct ImageOffset {
  uint64_t value = 0;
  friend constexpr auto operator<=>(ImageOffset, ImageOffset) = default;
};

}  // namespace ckpt
