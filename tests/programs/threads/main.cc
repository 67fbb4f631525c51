#include "tests/programs/threads/threads.h"

int main(int argc, char** argv) {
  using namespace threads;
  return victim::run_victim({"threads",
                             "Runs threads of every kind.",
                             {{"crowd", "128 waiting threads hand a token round", 60'000, crowd},
                              {"raw", "threads made by clone(2)", 400'000'000, raw},
                              {"attributes", "names, affinity, scheduling", 20'000, attributes},
                              {"stacks", "threads on stacks of the program's own", 4'000'000, own_stacks},
                              {"exceptions", "exceptions through many frames", 60'000, exceptions},
                              {"locals", "thread_local objects", 4'000, locals},
                              {"detached", "detached threads", 4'000, detached}}},
                            argc, argv);
}
