#include "tests/programs/hunters/hunters.h"

int main(int argc, char** argv) {
  return victim::run_victim(
      {"hunters",
       "Keeps invariants between pages at full speed.",
       {{"sweep", "pages that hold the step that wrote them", 12'000, hunters::sweep},
        {"seqlock", "sequence lock over several pages", 3'000'000, hunters::seqlock},
        {"stacks", "nodes wander between lock-free stacks", 3'000'000, hunters::stacks},
        {"ring", "messages through a lock-free ring", 5'000'000, hunters::ring},
        {"accounts", "transfers between accounts, total conserved", 900, hunters::accounts},
        {"shared", "counters in shared memory and a memfd", 2'400'000, hunters::shared},
        {"locked", "sums kept under a mutex", 5'000'000, hunters::locked}}},
      argc, argv);
}
