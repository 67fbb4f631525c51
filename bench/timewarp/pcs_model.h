// Personal communication services, portable-initiated (Carothers et al. 1999, section 3): cells are LPs,
// portables are messages that travel among them.
//
// Owner: bench/timewarp; tests use it too. Callers: engines, through the model.
#pragma once

#include <cstdint>

#include "ckpt_timewarp.h"

namespace timewarp_bench {

// Times in seconds.
struct PcsParameters {
  uint32_t width = 120, height = 120;    // cells, a torus
  uint32_t portables = 25;               // in each cell at the beginning
  uint32_t channels = 10, reserved = 1;  // in each cell; reserved: for portables that move in during a call
  double call_interval = 360, call_time = 180, residence = 4500, lookahead = 1;
};

// `parameters` must live as long as the model.
ckpt_tw_model pcs_model(const PcsParameters& parameters);

}  // namespace timewarp_bench
