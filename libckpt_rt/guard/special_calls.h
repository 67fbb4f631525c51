// System calls of which the table does not say where they write: an argument names the operation, or the
// call is about mappings or descriptors.
//
// Owner: libckpt_rt. Callers: calls.cc.
#pragma once

#include "libckpt_rt/guard/outputs.h"

namespace ckpt::guard {

// kWait: the call is unknown, or its arguments do not tell.
Verdict special_outputs(long nr, const long* args, Outputs& out);

// The call writes to a file of /proc: it may be the memory of a process, of this one too, where the kernel
// writes whatever is protected. The file's name does not tell which process it is of.
bool writes_to_proc(long nr, const long* args);

}  // namespace ckpt::guard
