// Which open file descriptions several members share.
//
// Owner:     job. Callers: the coordinator's agent, while all members stand, so that no description is closed
//            and its address in the kernel used again.
// Source:    kcmp(2), KCMP_FILE: one order over the descriptions of all processes.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "job/format/wire.h"

namespace ckpt::job {

struct MemberFiles {
  int pid;
  int tid;  // one of its threads
  std::span<const OpenFileKey> files;
};

struct SharedUse {
  uint32_t member;  // index
  uint32_t open_file;
  uint32_t group;  // uses with one number are of one description; in order
};

// Only files that agree in device, inode, flags and kind are compared. until_ns: CLOCK_MONOTONIC, for all
// stand meanwhile. Errors: kcmp is forbidden; the time is over.
Result<void> find_shared(std::span<const MemberFiles> members, int64_t until_ns, Arena& arena,
                         ArenaVector<SharedUse>& shared);

}  // namespace ckpt::job
