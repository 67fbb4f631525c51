// The manifest of a job's checkpoint: JSON, written without libc.
//
// Owner:     job. Callers: the coordinator's agent, the program running.
#pragma once

#include <span>

#include "base/protocol/control_protocol.h"
#include "base/result.h"
#include "job/capture/coordinator/descriptions.h"
#include "job/capture/members/members.h"
#include "job/identity/identity.h"

namespace ckpt::job {

struct ManifestEntry {
  Listed listed;
  bool has_image = false;
  bool subreaper = false;
  int pdeath_signal = 0;
  int stop_signal = 0;         // 0: it was not stopped
  bool stop_reported = false;  // to its parent, by wait(2)
  bool left_out = false;
  const char* reason = "";  // left_out
  uint64_t image_bytes = 0;
  uint64_t image_state = 0;  // ImageBrief::meta_checksum
};

struct ManifestSources {
  const Identity* job;
  const char* name;
  uint64_t sequence;
  int64_t realtime_ns, monotonic_ns, boottime_ns;  // of the stop
  int64_t pause_ns;
  std::span<const ManifestEntry> members;
  std::span<const SharedUse> shared;  // member: index of shared_members
  std::span<const MemberFiles> shared_members;
  std::span<const SharedSaver> savers;
  const HostsPart* part;  // nullptr: of a job on one host
};

// Creates the file in `directory`, 0600, and syncs it.
Result<void> write_manifest(int directory, const ManifestSources& sources, Arena& arena);

}  // namespace ckpt::job
