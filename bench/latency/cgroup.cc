#include "bench/latency/cgroup.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace latency {
namespace {

// The value behind `key ` at the start of a line.
uint64_t value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string name; file >> name;) {
    uint64_t value = 0;
    if (!(file >> value)) break;
    if (name == key) return value;
  }
  return 0;
}

// Mount point of a cgroup file system: of the memory controller (version 1), or of version 2.
std::string mount_point(bool version2) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, path, type, options;
    words >> device >> path >> type >> options;
    if (version2 ? type == "cgroup2"
                 : type == "cgroup" && ("," + options + ",").find(",memory,") != std::string::npos) {
      return path;
    }
  }
  return "";
}

// Our own group in that hierarchy: "" or "/a/b".
std::string own_group(bool version2) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (version2 ? controllers == ",," : controllers.find(",memory,") != std::string::npos) {
      std::string path = line.substr(second + 1);
      return path == "/" ? "" : path;
    }
  }
  return "";
}

}  // namespace

std::optional<Cgroup> Cgroup::make(std::string* why) {
  for (bool version2 : {false, true}) {
    std::string mount = mount_point(version2);
    if (mount.empty()) continue;
    std::string parent = mount + own_group(version2);
    std::string directory = fmt::format("{}/ckpt_latency.{}", parent, getpid());
    if (mkdir(directory.c_str(), 0755) != 0) {
      *why =
          fmt::format("cannot make a memory cgroup in {}: {}; run as root, or delegate the memory controller",
                      parent, std::strerror(errno));
      continue;
    }
    Cgroup group(directory, version2);
    if (access((directory + (version2 ? "/memory.max" : "/memory.limit_in_bytes")).c_str(), W_OK) == 0)
      return group;
    *why = fmt::format("{} has no memory controller for its children", parent);
  }
  if (why->empty()) *why = "no cgroup file system with the memory controller is mounted";
  return std::nullopt;
}

Cgroup::Cgroup(Cgroup&& other) noexcept
    : directory_(std::exchange(other.directory_, {})), version2_(other.version2_) {}

Cgroup::~Cgroup() {
  if (!directory_.empty()) rmdir(directory_.c_str());
}

bool Cgroup::limit(uint64_t bytes) const {
  std::ofstream file(directory_ + (version2_ ? "/memory.max" : "/memory.limit_in_bytes"));
  file << bytes << std::flush;
  return static_cast<bool>(file);
}

uint64_t Cgroup::anonymous() const {
  return value_of(directory_ + "/memory.stat", version2_ ? "anon" : "rss");
}

uint64_t Cgroup::killed() const {
  return value_of(directory_ + (version2_ ? "/memory.events" : "/memory.oom_control"), "oom_kill");
}

}  // namespace latency
