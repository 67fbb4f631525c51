// The program's children. An image of the program alone records only that they were there.
//
// Owner:     libckpt_rt. Callers: the agent, threads standing.
// Never:     waits for a child, or takes its status from the program.
// Source:    /proc/PID/task/TID/children, /proc/PID/stat (proc(5)).
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "image/format/records/process_records.h"

namespace ckpt {

struct LostChild {
  ChildRecord record;
  char name[16];
};

// Without children that send no signal at their end, as processes that our threads make. Empty also where the
// kernel does not list children.
std::span<const LostChild> list_children(Arena& arena);

}  // namespace ckpt
