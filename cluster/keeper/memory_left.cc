#include "cluster/keeper/memory_left.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace ckpt::keeper {

namespace {

// A number alone in a file; false: there is none ("max", no such file).
bool read_number(const std::string& path, uint64_t& number) {
  std::ifstream in(path);
  std::string text;
  if (!(in >> text)) return false;
  return std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc();
}

// Pages of files count as used, and are given back when memory is wanted.
uint64_t inactive_files(const std::string& stat) {
  std::ifstream in(stat);
  uint64_t bytes = 0, of_all = 0;
  for (std::string key; in >> key >> bytes;) {
    if (key == "total_inactive_file") return bytes;
    if (key == "inactive_file") of_all = bytes;
  }
  return of_all;
}

// A group and those that it is in, up to the root of its hierarchy.
void bound_by(const std::string& hierarchy, std::string group, const char* limit_name, const char* used_name,
              MemoryLeft& memory) {
  for (;;) {
    const std::string at = hierarchy + group + (group.ends_with('/') ? "" : "/");
    uint64_t limit = 0, used = 0;
    if (read_number(at + limit_name, limit) && read_number(at + used_name, used)) {
      used -= std::min(used, inactive_files(at + "memory.stat"));
      memory.all = std::min(memory.all, limit);
      memory.left = std::min(memory.left, limit - std::min(limit, used));
    }
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos || group.size() <= 1) return;
    group.erase(std::max<size_t>(slash, 1));
  }
}

}  // namespace

MemoryLeft memory_left(const std::string& root) {
  MemoryLeft memory;
  std::ifstream of_machine(root + "/proc/meminfo");
  uint64_t kib = 0;
  for (std::string key, unit; of_machine >> key >> kib;) {
    std::getline(of_machine, unit);
    if (key == "MemTotal:") memory.all = kib << 10;
    if (key == "MemAvailable:") memory.left = kib << 10;
  }
  // "0::/a/b" (version 2), "4:memory:/a/b" (version 1).
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    const std::string mounted = root + "/sys/fs/cgroup";
    if (controllers.empty()) bound_by(mounted, group, "memory.max", "memory.current", memory);
    if (("," + controllers + ",").find(",memory,") != std::string::npos)
      bound_by(mounted + "/memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes", memory);
  }
  return memory;
}

}  // namespace ckpt::keeper
