#include "libckpt_rt/capture/rings/only_hole.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <string_view>

#include "base/memory/own_place.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/units.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::rings {
namespace {

constexpr uint64_t kListBytes = 4 << 20;
// mmap(2) without a wish stays below this (DEFAULT_MAP_WINDOW), and keeps away from the end of a stack
// (stack_guard_gap).
constexpr uint64_t kEnd = 0x7ffffffff000, kFirst = 1 << 20, kStackGuard = 256 * kPageSize;

uint64_t hexadecimal(std::string_view& text) {
  uint64_t n = 0;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text[0];
    if (c >= '0' && c <= '9')
      n = n * 16 + static_cast<uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      n = n * 16 + static_cast<uint64_t>(c - 'a' + 10);
    else
      break;
  }
  return n;
}

// The restart may have put the program's memory where the kernel itself would not have looked for a place.
long take(uint64_t start, uint64_t size) {
  return sys::call(__NR_mmap, start, size, long{PROT_NONE},
                   long{MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE}, -1L, 0L);
}

}  // namespace

ScopedFullSpace::ScopedFullSpace() {
  const long list = map_own(kListBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (sys::failed(list)) {
    error_ = list;
    return;
  }
  gaps_ = reinterpret_cast<Range*>(list);
  list_gaps();
  for (; error_ == 0 && taken_ < count_; ++taken_) {
    const Range& gap = gaps_[taken_];
    if (const long r = take(gap.start, gap.end - gap.start); sys::failed(r)) error_ = r;
    if (error_ != 0) return;
  }
}

ScopedFullSpace::~ScopedFullSpace() {
  while (taken_ != 0) {
    const Range& gap = gaps_[--taken_];
    sys::call(__NR_munmap, gap.start, gap.end - gap.start);
  }
  if (gaps_ != nullptr) sys::call(__NR_munmap, gaps_, kListBytes);
}

void ScopedFullSpace::add_gap(uint64_t start, uint64_t end) {
  if (start >= end) return;
  if ((count_ + 1) * sizeof(Range) > kListBytes)
    error_ = -ENOMEM;
  else
    gaps_[count_++] = {start, end};
}

void ScopedFullSpace::list_gaps() {
  const ScopedFd maps(static_cast<int>(
      sys::call(__NR_openat, long{AT_FDCWD}, "/proc/self/maps", long{O_RDONLY | O_CLOEXEC}, 0L)));
  if (!maps.valid()) {
    error_ = maps.get();
    return;
  }
  uint64_t free = kFirst;
  auto take_line = [&](std::string_view line) {
    const bool is_stack = line.ends_with("[stack]");
    const uint64_t start = hexadecimal(line);
    if (!line.empty()) line.remove_prefix(1);
    const uint64_t end = hexadecimal(line);
    if (start >= kEnd) return;
    add_gap(free, is_stack ? start - kStackGuard : start);
    if (end > free) free = end;
  };
  char buffer[1024];
  size_t filled = 0;
  bool cut = false;  // the rest of a line whose beginning has been taken
  for (;;) {
    const long n = sys::call(__NR_read, maps.get(), buffer + filled, sizeof(buffer) - filled);
    if (n <= 0) break;
    filled += static_cast<size_t>(n);
    std::string_view text(buffer, filled);
    for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1), cut = false) {
      if (!cut) take_line(text.substr(0, end));
    }
    if (text.size() == sizeof(buffer)) {
      if (!cut) take_line(text);
      cut = true;
      text = {};
    }
    filled = text.size();
    std::memmove(buffer, text.data(), filled);
  }
  add_gap(free, kEnd);
}

long map_instead(uint64_t start, uint64_t size, int protection, int fd, uint64_t offset) {
  sys::call(__NR_munmap, start, size);
  const long at =
      sys::call(__NR_mmap, 0L, size, long{protection}, long{MAP_SHARED | MAP_POPULATE}, long{fd}, offset);
  if (sys::failed(at)) return at;
  if (static_cast<uint64_t>(at) == start) return 0;
  sys::call(__NR_munmap, at, size);
  return -EADDRNOTAVAIL;
}

}  // namespace ckpt::rings
