// System calls of which the table does not say where they write: an argument names the operation, or the
// call is about mappings or descriptors.
//
// Owner: libckpt_rt. Callers: calls.cc.
#pragma once

#include "libckpt_rt/guard/outputs.h"

namespace ckpt::guard {

// kWait: the call is unknown, or its arguments do not tell.
Verdict special_outputs(long nr, const long* args, Outputs& out);

}  // namespace ckpt::guard
