// Before the parts of a checkpoint come back: what is missing of them is computed, and each agent is told
// where all hosts are now.
//
// Owner: cli, the head. One thread. Callers: restarts and moves.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

std::string working_directory();
std::string directory_of(const std::string& path);

// Computes what is missing of this checkpoint's parts, and before that of those that it needs (needed_by()).
Result<void> recover_all(Crew& crew, const std::string& directory, const HostsManifest& manifest);

// Sets "silence_ms" in the table of hosts if the job goes on when one of them dies (HostsRun::recover):
// ckpt-on then waits that long for a silent host, and an agent knows by it that the job goes on elsewhere.
// Else removes it.
void note_recovery(const HostsRun& run, Json& table);

class PartStarts {
 public:
  // path: of the checkpoint. Each part comes to the crew's host of the same number; all of them are
  // connected. come: the processes of all other parts stay where they are; empty: all come.
  static Result<PartStarts> prepare(Crew& crew, const std::string& path, const HostsManifest& manifest,
                                    const HostsRun& run, std::vector<int> come = {});

  // What the agent of a part is told to bring it back.
  Json of(size_t part) const;
  // Of hosts, with their addresses of now.
  const Json& table() const { return table_; }
  // Where the job's checkpoints go: beside the .hosts file, as when the job began. The .hosts files of
  // checkpoints on a disk are one directory below.
  const std::string& home() const { return home_; }
  bool any_shares_host() const;
  // For ckpt-restart of a part, or ckpt back-part; connections: as connections_of() gives them.
  Json plan(size_t part, Json connections) const;
  // Both ends of each, and the address of the part at each, as the job knows it. with: only connections of
  // which one end is in one of these parts; empty: all.
  Json connections_of(const std::vector<int>& with) const;

 private:
  HostsManifest manifest_;
  HostsRun run_;
  Json table_;
  std::string home_, token_;
  bool on_disk_ = false;
  std::vector<bool> shares_;
};

}  // namespace ckpt::cli
