// Which processes are in the job: found by going through the children of all members, and through those of
// the ancestors of the first member, whose adopted children may be members too.
//
// Owner:     job. Callers: the coordinator's agent. Memory from the Arena given.
#pragma once

#include "base/memory/arena.h"
#include "base/result.h"
#include "job/capture/members/process_look.h"
#include "job/identity/identity.h"

namespace ckpt::job {

struct Listed {
  ProcessLook look;
  bool orphan = false;  // its parent is no member
};

// All processes of the job but those that threads of ours have made (to write images), parents before their
// children; also those without the library and those that have ended and were not waited for. own_pid is a
// member. False: the arena is full.
bool list_members(const Identity& job, int own_pid, Arena& arena, ArenaVector<Listed>& members);

// The job's first process, if it is an ancestor of ours that was not found to be a member: it belongs to
// another user, and this process may not look at it. 0: there is none.
int hidden_root(const Identity& job, int own_pid, const ArenaVector<Listed>& members);

// Is there nobody but this process? A cheap look, for programs that never had a child.
bool is_alone(const Identity& job, int own_pid);

}  // namespace ckpt::job
