// Personal communication services, call-initiated (Santoro and Quaglia, section 5.1): hexagonal cells with
// channels of their own; a portable is followed only while it is in a call.
//
// Owner: bench/timewarp; tests use it too. Callers: engines, through the model.
#pragma once

#include <cstdint>

#include "ckpt_timewarp.h"

namespace timewarp_bench {

// Times in seconds.
struct PcsCallsParameters {
  uint32_t cells = 32;
  uint32_t columns = 0;  // 0: about the square root of cells
  double call_interval = 10, holding = 120;
  double residence[2] = {180, 1800};  // fast and slow portables
  double handoff = 0;                 // delay of a hand-off
  uint32_t grain = 1;                 // how often the power computation is done: a slower processor
};

// `parameters` must live as long as the model.
ckpt_tw_model pcs_calls_model(const PcsCallsParameters& parameters);

}  // namespace timewarp_bench
