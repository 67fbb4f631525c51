#include "libckpt_rt/capture/sockets/noted/socket_mappings.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/memory/large_table.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::socket_mappings {
namespace {

struct Noted {
  AddrRange range;
  uint64_t offset;
  int fd;
  bool shared;
};
constexpr uint32_t kMost = 256;
CKPT_LARGE_TABLE constinit Noted noted[kMost]{};
constinit uint32_t count = 0;

// No page of it is there.
bool is_empty(AddrRange range) {
  const ScopedFd pages(static_cast<int>(
      sys::call(__NR_openat, long{AT_FDCWD}, "/proc/self/pagemap", long{O_RDONLY | O_CLOEXEC}, 0L)));
  if (!pages.valid()) return false;
  constexpr uint64_t kPresent = 1ull << 63, kSwapped = 1ull << 62;
  uint64_t entries[512];
  for (uint64_t at = range.start.value; at < range.end.value;) {
    const uint64_t wanted = std::min((range.end.value - at) / kPageSize, std::size(entries));
    const long bytes = static_cast<long>(wanted * sizeof(uint64_t));
    const uint64_t place = at / kPageSize * sizeof(uint64_t);
    if (sys::call(__NR_pread64, pages.get(), entries, bytes, place) != bytes) return false;
    if (std::any_of(entries, entries + wanted,
                    [](uint64_t entry) { return (entry & (kPresent | kSwapped)) != 0; }))
      return false;
    at += wanted * kPageSize;
  }
  return true;
}

}  // namespace

void begin() {
  if (count != 0) count = 0;
}

bool note(AddrRange range, uint64_t offset, bool shared, int fd) {
  if (count == kMost || !is_empty(range)) return false;
  noted[count++] = {range, offset, fd, shared};
  return true;
}

long map_again() {
  for (uint32_t i = 0; i < count; ++i) {
    const Noted& n = noted[i];
    const long at = sys::call(__NR_mmap, n.range.start.value, n.range.size(), long{PROT_READ},
                              long{(n.shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED}, n.fd, n.offset);
    if (sys::failed(at)) return at;
  }
  return 0;
}

}  // namespace ckpt::socket_mappings
