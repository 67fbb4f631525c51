// To which job this process belongs: that of the first preloaded process among its ancestors.
//
// Owner:     libckpt_rt (own_job.h).
// Callers:   the preload constructor, while one thread runs.
// Never:     calls setenv(3) or its kin: programs bring their own (bash does).
//
// The environment carries it over exec:
//   CKPT_JOB="<32 hex digits>:<pid of the first>@<its beginning>:<image directory>"
// `ckpt run` sets only the digits, so that /proc/PID/environ of the first and of its forked children shows
// them; the first preloaded process adds the rest.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "job/format/job_name.h"

namespace ckpt::job {

inline constexpr const char* kJobVariable = "CKPT_JOB";

struct Identity {
  uint8_t id[16] = {};
  int root = 0;               // pid of the first preloaded process; 0: not known, no jobs
  int64_t began_ns = 0;       // when the first began, CLOCK_REALTIME; 0: not known
  char directory[1200] = {};  // absolute: where checkpoints of the job go
};

// Reads the variable's value; nullptr: it is not set. False: it names no root and directory yet; then the id
// is read from the digits, or made if there are none.
bool read_identity(const char* value, Identity& identity);
// Puts the variable into the environment that the program and all it starts will see. False: no memory.
bool export_identity(const Identity& identity);
// For a process whose environment in /proc does not name the job (the first one without `ckpt run`, and what
// a restart has made): a page whose name does, in the list of its mappings. In no image; inherited by forked
// children. Empty: it cannot be made, and a child that loses its parent is not found.
AddrRange show_identity(const Identity& identity);
inline constexpr const char* kSignName = "ckpt_job:";  // and the digits

}  // namespace ckpt::job
