// The mappings of a file, from /proc/self/maps, through a buffer on the stack. Read only while a checkpoint
// copies, when the program truncates or punches a file, or detaches shared memory.
#include <fcntl.h>
#include <sys/sysmacros.h>

#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/memory/memory.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {
namespace {

// "start-end perms offset major:minor inode path"
struct MapsLine {
  uint64_t start = 0, end = 0, device_major = 0, device_minor = 0, inode = 0;
};

const char* number(const char* p, const char* end, unsigned base, uint64_t& value) {
  for (value = 0; p < end; ++p) {
    unsigned digit = base;
    if (*p >= '0' && *p <= '9') digit = static_cast<unsigned>(*p - '0');
    if (*p >= 'a' && *p <= 'f') digit = static_cast<unsigned>(*p - 'a') + 10;
    if (digit >= base) break;
    value = value * base + digit;
  }
  return p < end ? p + 1 : p;  // and the separator
}

MapsLine parse(const char* p, const char* end) {
  MapsLine line;
  uint64_t offset;
  p = number(p, end, 16, line.start);
  p = number(p, end, 16, line.end);
  p = p + 5 < end ? p + 5 : end;  // "rwxp "
  p = number(p, end, 16, offset);
  p = number(p, end, 16, line.device_major);
  p = number(p, end, 16, line.device_minor);
  number(p, end, 10, line.inode);
  return line;
}

void consider(const MapsLine& line, uint64_t device, uint64_t inode, uintptr_t start) {
  bool wanted = start != 0 ? line.start == start
                           : line.inode == inode && makedev(line.device_major, line.device_minor) == device;
  if (wanted) hooks::before_release(line.start, line.end - line.start);
}

}  // namespace

void release_mappings(uint64_t device, uint64_t inode, uintptr_t start) {
  long fd = sys::call(__NR_openat, long{AT_FDCWD}, "/proc/self/maps", long{O_RDONLY | O_CLOEXEC}, 0L);
  if (fd < 0) {
    hooks::before_release(0, SIZE_MAX);
    return;
  }
  char buffer[2048];  // of a line only the beginning, up to the inode, is needed
  size_t have = 0;
  bool rest_of_line = false;
  for (;;) {
    long n = sys::call(__NR_read, fd, buffer + have, sizeof(buffer) - have);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
    size_t from = 0;
    for (size_t i = 0; i < have; ++i) {
      if (buffer[i] != '\n') continue;
      if (!rest_of_line) consider(parse(buffer + from, buffer + i), device, inode, start);
      rest_of_line = false;
      from = i + 1;
    }
    if (from == 0 && have == sizeof(buffer)) {
      if (!rest_of_line) consider(parse(buffer, buffer + have), device, inode, start);
      rest_of_line = true;
      have = 0;
      continue;
    }
    have -= from;
    for (size_t i = 0; i < have; ++i) buffer[i] = buffer[from + i];
  }
  sys::call(__NR_close, fd);
}

}  // namespace ckpt::calls
