// Lines on standard error while a simulation runs. Called by one thread of the engine, at a new GVT.
//
// Owner: timewarp/engine. Callers: one thread of the engine, at a new GVT.
#pragma once

#include <cstdint>

#include "timewarp/engine/setup.h"

namespace ckpt::timewarp {

inline constexpr char kNoMemory[] =
    "no memory left for events and states: fewer LPs, or a memory limit (--memory)";

// *next: when the next line is due, 0 at first.
void report_progress(Setup& setup, double gvt, int64_t* next);
void report_sequential(const Setup& setup, double now, uint64_t executed, int64_t* next);

}  // namespace ckpt::timewarp
