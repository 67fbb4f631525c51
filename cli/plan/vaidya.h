// How often to take checkpoints, and what they cost in the long run: equations 1 to 7 of Plank, Li and
// Puening 1998
// ("Diskless Checkpointing", section 9.1.1), which are Vaidya's (IEEE Trans. Computers 46(8), 1997).
//
// Failures are taken for a Poisson process. All times in seconds.
// Owner: cli. Ordinary code, any thread. Callers: `ckpt plan`.
#pragma once

namespace ckpt::cli {

struct PlanInput {
  double mtbf = 0;      // of all hosts together
  double overhead = 0;  // O: what a checkpoint adds to the program's time
  double latency = 0;   // L: from its beginning until it counts
  double recovery = 0;  // R: from a failure until the program is where the checkpoint was
  double repair = 0;    // until a host is there again
  double base = 0;      // T_base: the program's time without all that; 0: not known
};

struct PlanResult {
  double interval = 0;  // T_opt (1)
  double expected = 0;  // Gamma (2, 6): of an interval
  double ratio = 0;     // r (3)
  double with = 0;      // T_ckp (4); 0: base is not known
  double without = 0;   // T_nockp (5, 7); may be infinite
};

// mtbf > 0, overhead > 0, the others not negative.
PlanResult make_plan(const PlanInput& in);

}  // namespace ckpt::cli
