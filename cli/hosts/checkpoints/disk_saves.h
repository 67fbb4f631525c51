// Of a job over hosts whose parts are in keepers' memory every N-th checkpoint goes to a disk as well: each
// host saves its part at low priority, and when all have, a .hosts file says so. docs/diskless.md.
//
// Owner: cli, the head. One thread; nothing waits for a save. Saves run one at a time, each until all hosts
// have answered, for the hosts hold locks. A checkpoint that comes while another is saved is passed over,
// unless the other's save fails.
// Callers: the head; a restart, which goes on with what was begun.
#pragma once

#include <optional>
#include <string>

#include "cli/hosts/checkpoints/records.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"

namespace ckpt::cli {

// Beside the .hosts files of what is in memory.
inline constexpr const char* kOnDisk = "/disk";

class DiskSaves {
 public:
  // directory: of the job's .hosts files. Nothing is saved unless run.disk_every.
  DiskSaves(Crew& crew, const std::string& directory, const std::string& job, const HostsRun& run);
  // What the record of checkpoint `id`, which is about to count, says of saves: a head that comes later goes
  // on counting.
  Json noted(uint64_t id) const;
  // Another checkpoint counts.
  void counts(const HostsManifest& manifest);
  // "saved", or "failed" of "save".
  void heard(int host, const Json& said);

 private:
  void begin(const HostsManifest& manifest);
  void finish();

  Crew& crew_;
  const std::string directory_;
  const uint32_t every_;
  Records records_;
  uint32_t since_ = 0;                          // the last that was saved, or begun
  uint64_t begun_ = 0;                          // the id of that one
  std::optional<HostsManifest> saving_, next_;  // next_: the newest that was passed over
  size_t missing_ = 0;                          // hosts that have not answered
  bool failed_ = false;                         // on one of them
};

}  // namespace ckpt::cli
