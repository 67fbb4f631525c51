// Entries of a directory by getdents64(2), without allocation.
//
// Owner:     base. Header only. Callers: any thread, in the victim too. 4 KiB of stack.
#pragma once

#include <string_view>

#include "base/sys.h"

namespace ckpt {

struct DirectoryEntry {  // struct linux_dirent64
  uint64_t inode;
  int64_t offset;
  uint16_t bytes;  // of this entry: the next one lies behind them
  uint8_t type;    // DT_*
  char name[];
};

// visit(std::string_view name) for each entry, in no order; the name is NUL-terminated. 0 or -errno.
// Starts at the beginning whatever was read from dir_fd before.
template <typename Visit>
long scan_directory(int dir_fd, Visit visit) {
  alignas(8) char buffer[4096];
  long r = sys::call(__NR_lseek, dir_fd, 0L, 0L);
  if (sys::failed(r)) return r;
  while (true) {
    long n = sys::call(__NR_getdents64, dir_fd, buffer, sizeof(buffer));
    if (n <= 0) return n;
    for (long at = 0; at < n;) {
      auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      visit(std::string_view(entry->name));
      at += entry->bytes;
    }
  }
}

}  // namespace ckpt
