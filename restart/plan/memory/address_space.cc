#include "restart/plan/memory/address_space.h"

#include <errno.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>

namespace ckpt {

Result<std::vector<OwnMapping>> own_mappings() {
  std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  if (!maps) {
    return make_error(ExitCode::kUnavailable, errno, "/proc/self/maps cannot be read ({}): mount /proc",
                      errno_name(errno));
  }
  std::vector<OwnMapping> result;
  char line[4400];
  while (std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    uint64_t start = 0, end = 0;
    int name_at = 0;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %n", &start, &end, &name_at) < 2) continue;
    if (end > kTaskEnd5Level) continue;  // [vsyscall]
    std::string name = name_at > 0 ? line + name_at : "";
    while (!name.empty() && name.back() == '\n') name.pop_back();
    result.push_back({{{start}, {end}}, std::move(name)});
  }
  return result;
}

Result<Addr> find_room(std::vector<AddrRange> taken, uint64_t bytes, uint64_t margin, Addr from) {
  std::sort(taken.begin(), taken.end(),
            [](const AddrRange& a, const AddrRange& b) { return a.start < b.start; });
  Addr at = from;
  for (const AddrRange& t : taken) {
    if (t.start > at && t.start - at >= bytes + 2 * margin) break;
    at = std::max(at, t.end);
  }
  if (at.value + bytes + 2 * margin > kTaskEnd) {
    return make_error(ExitCode::kUnavailable, 0,
                      "no {} bytes of address space are free both here and in the saved program", bytes);
  }
  return at.page_up() + margin;
}

}  // namespace ckpt
