// Starts a keeper: the process, its memory and its socket.
//
// Owner:     cli. Callers: ckpt keeper start, ckpt run --to keeper:, the agents of hosts. One thread: it
//            forks.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cli/keeper/disk/disk_watch.h"

namespace ckpt::cli {

struct KeeperSettings {
  DiskOptions disk;
  std::string name;           // "": the default one
  uint64_t memory_bytes = 0;  // 0: half of the machine's
  bool touch = true;          // its memory, beforehand
  bool foreground = false;    // this process becomes the keeper
};

// Returns when it answers; in the foreground, when it has ended. kUnavailable: one of that name is there.
Result<void> start_keeper(const KeeperSettings& settings);

// The same, unless one is there.
Result<void> ensure_keeper(const KeeperSettings& settings);

// A directory for images on a disk, made if it is missing; its whole path.
Result<DiskOptions> disk_options(const std::string& directory, uint32_t every);

}  // namespace ckpt::cli
