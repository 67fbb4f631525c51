// Checkpoints of jobs over several hosts in the list of a directory.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt ls`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/hosts/job/hosts_manifest.h"

namespace ckpt::cli {

struct HostsEntry {
  std::string path;  // of its .hosts file
  uint64_t sequence = 0;
  bool readable = false;
  std::string error;       // why not
  HostsManifest manifest;  // when it could be read
  size_t parts_here = 0;   // whole, and reached from this host; those of others may be on their disks
  uint64_t bytes = 0;      // of these
  std::vector<std::string> problems = {};  // of parts that are here, or should be: a line for each
  size_t locked = 0;                       // of these are encrypted, and the key is not here
};

// By sequence.
std::vector<HostsEntry> list_hosts_jobs(const std::string& directory);
void print_hosts_jobs(const std::vector<HostsEntry>& jobs);
void add_hosts_jobs_json(const std::vector<HostsEntry>& jobs, nlohmann::ordered_json* json);

}  // namespace ckpt::cli
