// The head's half of redundancy: before a checkpoint over hosts counts, its parts' checks are made; at a restart, parts
// that are gone are computed from those that are there. docs/diskless.md.
//
// Owner: cli, the head. One thread. What agents say of other things meanwhile is kept for later (CrewHost::early);
//        signals and askers wait.
#pragma once

#include "cli/hosts/crew.h"
#include "cli/hosts/hosts.h"

namespace ckpt::cli {

// When all parts of checkpoint `id` are complete. Returns what the checkpoint has to remember: HostsManifest::redundancy.
Result<Json> protect_parts(Crew& crew, uint64_t id, const std::vector<HostsManifest::Part>& parts,
                           const std::string& scheme);

// Of a checkpoint in keepers' memory: each host that does not have its part gets it. Does nothing if no part is gone.
// kNotFound: more parts are gone than the code gives back; it names their hosts.
Result<void> recover_parts(Crew& crew, const HostsManifest& manifest);

}  // namespace ckpt::cli
