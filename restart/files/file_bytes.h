// What a file held at the checkpoint, compared with what it holds now, and put back. Holes stay holes: of a
// sparse file only what is in it is read and written.
//
// Owner:     restart/files. Callers: the child, of a job the planter; a program that goes back.
// Never:     has the bytes of an image copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "image/read/image_meta.h"

namespace ckpt {

class FileBytes {
 public:
  // sparse: zeros are put back as holes. Else as bytes: the program may have taken care to have the room.
  FileBytes(uint64_t size, bool sparse) : size_(size), sparse_(sparse) {}
  FileBytes(FileBytes&&) = default;  // pieces stay where they are
  FileBytes& operator=(FileBytes&&) = default;

  uint64_t size() const { return size_; }
  // Bytes that stay where they are for as long as this object. What nothing is added of is zeros. In any
  // order; sort() comes after the last.
  void add(uint64_t offset, Blob bytes) {
    if (!bytes.empty()) pieces_.push_back({offset, bytes});
  }
  void sort();
  // Bytes from the beginning on, which move here.
  void take(std::vector<std::byte> bytes);

  // Are these the first size() bytes of the file? 1, 0, or -1 and errno: it cannot be read. What is behind
  // them is not looked at.
  int are_in(int fd) const;
  // Makes them the first of the file; longer it stays. False: errno says why.
  bool put_into(int fd) const;

 private:
  static constexpr uint64_t kChunk = 64 << 10;

  // Calls fn(offset, bytes found, bytes of then) for each part of the file in which there is anything, then
  // or now. False: errno.
  template <typename Fn>
  bool for_each_chunk(int fd, Fn&& fn) const;
  struct Piece {
    uint64_t offset;
    Blob bytes;
    uint64_t end() const { return offset + bytes.size(); }
  };
  std::vector<Piece>::const_iterator first_behind(uint64_t at) const;  // that ends behind it
  void read_then(uint64_t at, std::span<std::byte> to) const;

  uint64_t size_;
  bool sparse_;
  std::vector<std::byte> own_;
  std::vector<Piece> pieces_;  // by offset
};

// Copies `bytes` of a file from `at` on to the beginning of a new one, which has holes where that one has.
// Errno of what failed: of reading (*reading true) or writing; 0: done.
int copy_with_holes(int from, uint64_t at, uint64_t bytes, int to, bool* reading);

}  // namespace ckpt
