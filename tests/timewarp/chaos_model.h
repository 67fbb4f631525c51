// A model that is as unpleasant as its parameters ask for: ties, no look-ahead, messages to all, states that
// grow.
//
// Owner: tests/timewarp. Callers: engines, through the model.
#pragma once

#include "ckpt_timewarp.h"

namespace timewarp_test {

struct Chaos {
  uint32_t lps = 16;
  uint32_t events = 2;  // of each LP at the beginning
  double delay = 1;     // the unit
  uint32_t steps = 4;   // delays are 0 to steps - 1 units, or continuous if 0
  bool zero = false;    // a delay of 0 is allowed
  uint32_t burst = 0;   // one event in so many sends to all LPs; 0: none
  double jump = 0;      // one event in 16 sends that far ahead
  bool grow = false;    // states grow
  bool shrink = false;  // and shrink: has no inverse
  int fault = 0;        // one of Fault
  uint32_t fault_lp = 3;
  uint64_t fault_event = 20;  // of that LP
  ckpt_tw_way mixed_ways = CKPT_TW_COPY;
  bool mix = false;  // each LP goes back in another way
};

enum Fault {
  kNone,
  kIntoThePast,
  kNoSuchLp,
  kMessageTooLarge,
  kStateTooLarge,
  kBadInverse,
  kOwnError,
  kForever
};

inline constexpr size_t kMostState = 1024;

// `chaos` must live as long as the model.
ckpt_tw_model chaos_model(const Chaos& chaos);

}  // namespace timewarp_test
