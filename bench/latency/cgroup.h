// A memory cgroup below our own, for one measured program: a limit, and a count of its memory that
// includes forked children. Version 1 or 2 of the interface, whichever has the memory controller.
//
// Owner:     bench/latency. Removed when it goes; everything in it must have ended before.
// Callers:   the benchmark's only thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace latency {

class Cgroup {
 public:
  // nullptr when cgroups cannot be used here; *why says so in words.
  static std::optional<Cgroup> make(std::string* why);
  Cgroup(Cgroup&& other) noexcept;
  Cgroup& operator=(Cgroup&&) = delete;
  ~Cgroup();

  // Where a process writes "0" to join.
  std::string join_file() const { return directory_ + "/cgroup.procs"; }
  // False when the kernel refuses.
  bool limit(uint64_t bytes) const;
  // Anonymous memory of all its processes, pages shared by copy-on-write once, in bytes.
  uint64_t anonymous() const;
  // Processes killed because of the limit.
  uint64_t killed() const;

 private:
  Cgroup(std::string directory, bool version2) : directory_(std::move(directory)), version2_(version2) {}
  std::string directory_;
  bool version2_;
};

}  // namespace latency
