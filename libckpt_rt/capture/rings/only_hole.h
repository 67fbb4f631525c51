// An address space in which the next mmap(2) has one place to go. The kernel maps a ring where it likes:
// mmap(2) and mremap(2) of a ring refuse any address (io_uring_get_unmapped_area, since Linux 6.4). So all
// that is free is taken, and then the one place is given up.
//
// Owner: rings. Callers: the leader at restart, all other threads waiting. Never: allocates but by mmap(2).
// ScopedFullSpace is undone as a whole when it goes out of scope.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt::rings {

class ScopedFullSpace {
 public:
  ScopedFullSpace();
  ~ScopedFullSpace();
  ScopedFullSpace(const ScopedFullSpace&) = delete;
  ScopedFullSpace& operator=(const ScopedFullSpace&) = delete;
  // 0, or the error for which there is still some room.
  long error() const { return error_; }

 private:
  struct Range {
    uint64_t start, end;
  };
  void list_gaps();
  void add_gap(uint64_t start, uint64_t end);

  Range* gaps_ = nullptr;
  size_t count_ = 0, taken_ = 0;
  long error_ = 0;
};

// Maps the ring where other memory is, instead of it. 0, or an error.
long map_instead(uint64_t start, uint64_t size, int protection, int fd, uint64_t offset);

}  // namespace ckpt::rings
