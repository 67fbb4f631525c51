#include "tests/programs/churn/churn.h"

int main(int argc, char** argv) {
  return victim::run_victim(
      {"churn",
       "Maps, allocates, starts, loads and forks, and takes it all down again.",
       {{"mappings", "mmap, munmap, mremap, madvise, mprotect", 12'000, churn::mappings},
        {"blocks", "malloc and free across threads", 60'000, churn::blocks},
        {"threads", "threads start and end", 15'000, churn::threads},
        {"libraries", "dlopen and dlclose", 8'000, churn::libraries},
        {"processes", "fork, exec, posix_spawn", 200, churn::processes, false}}},
      argc, argv);
}
