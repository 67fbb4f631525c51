// PHOLD (Fujimoto 1990): each event schedules one more, after look-ahead + exp(mean), for the LP itself or,
// with probability `remote`, for any LP.
//
// Owner: bench/timewarp; tests use it too. Callers: engines, through the model.
#pragma once

#include <cstdint>

#include "ckpt_timewarp.h"

namespace timewarp_bench {

struct PholdParameters {
  uint32_t lps = 4096;
  uint32_t events = 16;  // of each LP at the beginning
  double remote = 0.25;
  double mean = 0.8;
  double lookahead = 0.1;
  uint32_t state_bytes = 64;
  uint32_t grain = 0;  // rounds of arithmetic in each event
  uint32_t touch = 0;  // bytes of the state written by each event besides its head
};

// `parameters` must live as long as the model.
ckpt_tw_model phold_model(const PholdParameters& parameters);

}  // namespace timewarp_bench
