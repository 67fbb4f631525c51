// Reading and writing sequences of fixed-size values, strings and blobs, bounds-checked.
//
// Owner:     base. Header only. Callers: ByteWriter: the agent, which describes a program; it allocates from
//            an Arena only. ByteReader: readers of images, and the agent in `ckpt back`.
// ByteReader survives any input: after the first read past the end, ok() is false and every read
// gives zero or empty.
#pragma once

#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/memory/arena.h"

namespace ckpt {

class ByteWriter {
 public:
  explicit ByteWriter(Arena& arena) : bytes_(arena) {}

  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw(&value, sizeof(value));
  }
  void raw(const void* data, size_t n) {
    if (!bytes_.append(static_cast<const std::byte*>(data), n)) ok_ = false;
  }
  void pad_to(size_t align) {
    static const std::byte kZeros[64] = {};
    size_t over = bytes_.size() % align;
    if (over != 0) raw(kZeros, align - over);
  }
  // Overwrites bytes already written.
  template <typename T>
  void patch(size_t at, const T& value) {
    if (at + sizeof(value) <= bytes_.size()) std::memcpy(bytes_.data() + at, &value, sizeof(value));
  }
  size_t size() const { return bytes_.size(); }
  bool ok() const { return ok_; }  // false: the arena was full
  std::span<const std::byte> span() const { return bytes_.span(); }

 private:
  ArenaVector<std::byte> bytes_;
  bool ok_ = true;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    auto s = take(sizeof(T));
    if (ok_) std::memcpy(&value, s.data(), sizeof(T));
    return value;
  }
  std::string_view text(size_t n) {
    auto s = take(n);
    return {reinterpret_cast<const char*>(s.data()), s.size()};
  }
  std::span<const std::byte> take(size_t n) {
    if (!ok_ || n > bytes_.size() - at_) {
      ok_ = false;
      return {};
    }
    auto s = bytes_.subspan(at_, n);
    at_ += n;
    return s;
  }
  size_t left() const { return bytes_.size() - at_; }
  bool ok() const { return ok_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace ckpt
