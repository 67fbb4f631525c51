#include "libckpt_rt/checkpoint/stages/memory_size.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/sys.h"
#include "base/units.h"
#include "copier/segment_table.h"
#include "libckpt_rt/core/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

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
  return size;
}

uint64_t list_bytes(const MemorySize& memory) {
  constexpr uint64_t kLeast = 8 << 20, kMost = 64 << 20;
  rlimit64 limit{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_AS, 0L, &limit) != 0 || limit.rlim_cur == RLIM64_INFINITY)
    return kMost;
  const uint64_t left = limit.rlim_cur > memory.mapped ? limit.rlim_cur - memory.mapped : 0;
  return std::clamp(left / 32, kLeast, kMost);
}

uint64_t most_segments(const MemorySize& memory, uint64_t segment_bytes) {
  const uint64_t blocks =
      memory.resident / kPageSize < memory.mapped >> 21 ? memory.resident / kPageSize : memory.mapped >> 21;
  return (blocks + 1024) * ((2 << 20) / segment_bytes);
}

uint64_t table_bytes(const MemorySize& memory, uint64_t segment_bytes) {
  return most_segments(memory, segment_bytes) * 3 * (sizeof(Segment) + 3 * sizeof(uint32_t));
}

}  // namespace ckpt
