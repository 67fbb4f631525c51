// The record of a checkpoint of all hosts.
//
// Owner: cli. Callers: the head, which writes it; ckpt gather; agents, for checksums. One thread each.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

// A checkpoint of all hosts: the file NAME.NNNNNN.hosts in the image directory. The checkpoint counts when
// its file has that name.
struct HostsManifest {
  uint64_t id = 0;
  std::string job, name;
  int64_t time_ns = 0;
  struct Part {
    std::string host, address, directory, checksum;  // of the part's manifest.json
  };
  std::vector<Part> parts;
  // Between parts: both ends, as in Bookmark lines, and the names of the parts that have them.
  struct Connection {
    std::string one, other, part_of_one, part_of_other;
  };
  std::vector<Connection> connections;
  Json table;  // that ckpt-on reads: its key, and where each host listens
  Json redundancy =
      Json::object();         // of parts in keepers' memory (cli/hosts/checkpoints/redundancy.h); empty: none
  Json run = Json::object();  // what the head was told: a restart goes on with it
};
inline constexpr const char* kHostsSuffix = ".hosts";
Result<void> write_hosts_manifest(const std::string& directory, const HostsManifest& manifest);
Result<HostsManifest> read_hosts_manifest(const std::string& path);
// The newest in a directory, or the path itself if it is one. "": none.
std::string find_hosts_manifest(const std::string& path);
// The manifest that a user has named so, and its path.
Result<HostsManifest> read_hosts_checkpoint(const std::string& named, std::string* path);
// The newest of this job in a directory, which may have those of others as well. "": none.
// passed_over: a line for each newer one that cannot be used, whose job nobody knows.
std::string newest_hosts_manifest(const std::string& directory, const std::string& job,
                                  std::vector<std::string>* passed_over = nullptr);
// The same; these lines go to standard error.
std::string newest_to_go_on_from(const std::string& directory, const std::string& job);
uint64_t last_hosts_checkpoint(const std::string& directory);
std::vector<std::string> hosts_manifests_in(const std::string& directory);  // paths, by their numbers
std::string hosts_manifest_path(const std::string& directory, const HostsManifest& manifest);
// The checkpoints, by id, oldest first, whose parts are needed with its own.
std::vector<uint64_t> needed_by(const HostsManifest& manifest);
std::string checksum_of_file(const std::string& path);  // XXH3, hexadecimal; "": cannot be read

}  // namespace ckpt::cli
