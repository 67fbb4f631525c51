// The head's half of redundancy: before a checkpoint over hosts counts, its parts' checks are made; at a
// restart, parts that are gone are computed from those that are there. docs/diskless.md.
//
// Owner: cli, the head. One thread. Messages of agents about other things are put aside meanwhile
// (CrewHost::early). Callers: the head; a restart.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

// Is called ten times a second, or more often, while hosts are waited for. An error ends the waiting with it.
using Meanwhile = std::function<Result<void>()>;

// How parts are protected, as the user has said (HostsRun).
struct Redundancy {
  std::string scheme;
  std::vector<unsigned> checks_on;
  bool words = true;
  std::vector<std::string> ground = {};  // of each part that of an older full checkpoint; empty: none
};

// Of what protect_parts() has returned: some image is protected by its differences. How long are all images
// together, and what of them travels?
struct Protected {
  bool by_differences = false;
  uint64_t images = 0, stream = 0;
};
Protected how_protected(const Json& redundancy);

// When all parts of checkpoint `id` are complete. Returns what the checkpoint has to remember:
// HostsManifest::redundancy.
Result<Json> protect_parts(Crew& crew, uint64_t id, const std::vector<HostsManifest::Part>& parts,
                           const Redundancy& wanted, const Meanwhile& meanwhile);

// Of a checkpoint in keepers' memory: each host that does not have its part gets it. Returns the names of
// these hosts; it does nothing if no part is gone.
// kNotFound: more parts are gone than the code gives back; it names their hosts. A host whose keeper is too
// small for its part is marked (CrewHost::no_room).
Result<std::string> recover_parts(Crew& crew, const HostsManifest& manifest, const Meanwhile& meanwhile);

}  // namespace ckpt::cli
