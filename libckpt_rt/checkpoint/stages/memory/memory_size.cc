#include "libckpt_rt/checkpoint/stages/memory/memory_size.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <string_view>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/units.h"
#include "copier/segment_table.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// Of a line of maps, as far as it is known: the bytes of the mapping, if it is shared and anonymous.
uint64_t shared_bytes(std::string_view line) {
  uint64_t ends[2] = {};
  size_t at = 0;
  for (uint64_t& end : ends) {
    for (; at < line.size() && line[at] != '-' && line[at] != ' '; ++at)
      end = end * 16 + static_cast<uint64_t>(line[at] <= '9' ? line[at] - '0' : line[at] - 'a' + 10);
    ++at;
  }
  const bool shared = at + 3 < line.size() && line[at + 3] == 's';
  const bool anonymous = line.find("/dev/zero") != line.npos || line.find("[anon_shmem:") != line.npos;
  return shared && anonymous ? ends[1] - ends[0] : 0;
}

// How long the kernel's list of mappings is.
void measure_mappings(MemorySize& size) {
  ScopedFd file(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, "/proc/thread-self/maps", O_RDONLY | O_CLOEXEC, 0)));
  char text[4096];  // as much as the kernel writes at once
  char line[128];   // its beginning
  size_t length = 0;
  for (long n; file.valid() && (n = sys::call(__NR_read, file.get(), text, sizeof(text))) > 0;) {
    size.maps_text += static_cast<uint64_t>(n);
    for (const char* c = text; c < text + n; ++c) {
      if (*c == '\n') {
        ++size.mappings;
        size.shared += shared_bytes({line, length});
        length = 0;
      } else if (length < sizeof(line)) {
        line[length++] = *c;
      }
    }
  }
}

}  // namespace

MemorySize memory_size() {
  char text[256];
  if (read_small_file("/proc/thread-self/statm", text, sizeof(text)) <= 0) return {};
  const char* c = text;
  auto number = [&] {
    uint64_t pages = 0;
    for (; *c >= '0' && *c <= '9'; ++c) pages = pages * 10 + static_cast<uint64_t>(*c - '0');
    if (*c == ' ') ++c;
    return pages * kPageSize;
  };
  MemorySize size;
  size.mapped = number();
  size.resident = number();
  measure_mappings(size);
  return size;
}

uint64_t list_bytes(const MemorySize& memory) {
  constexpr uint64_t kLeast = 8 << 20, kMost = 64 << 20;
  // Data that waits in sockets and pipes is listed too, and then described: tens of MiB in one (tcp_rmem).
  constexpr uint64_t kUnlimited = 512 << 20;
  // Six lists of mappings with their names, the kernel's text three times, a record of the image for each.
  constexpr uint64_t kMapping = 2 << 10, kTexts = 12;  // bytes; times the text
  const uint64_t of_mappings = memory.mappings * kMapping + memory.maps_text * kTexts;
  rlimit64 limit{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_AS, 0L, &limit) != 0 || limit.rlim_cur == RLIM64_INFINITY)
    return kUnlimited + of_mappings;
  const uint64_t left = limit.rlim_cur > memory.mapped ? limit.rlim_cur - memory.mapped : 0;
  return std::clamp(left / 32, kLeast, kMost) + of_mappings;
}

uint64_t most_segments(const MemorySize& memory, uint64_t segment_bytes) {
  const uint64_t blocks =
      memory.resident / kPageSize < memory.mapped >> 21 ? memory.resident / kPageSize : memory.mapped >> 21;
  // Shared memory may be covered whether it exists or not.
  return (blocks + (memory.shared >> 21) + 1024) * ((2 << 20) / segment_bytes);
}

uint64_t table_bytes(const MemorySize& memory, uint64_t segment_bytes) {
  return most_segments(memory, segment_bytes) * 3 * (sizeof(Segment) + 3 * sizeof(uint32_t));
}

}  // namespace ckpt
