#include "cli/ask/machine_time.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace ckpt::cli {

std::optional<MachineTime> machine_time() {
  std::ifstream in("/proc/stat");
  std::string name;
  int64_t user = 0, nice = 0, system = 0, idle = 0, waiting = 0, hard = 0, soft = 0, stolen = 0;
  if (!(in >> name >> user >> nice >> system >> idle >> waiting >> hard >> soft >> stolen) || name != "cpu")
    return {};
  const int64_t tick_ns = 1'000'000'000 / sysconf(_SC_CLK_TCK);
  return MachineTime{stolen * tick_ns, (hard + soft) * tick_ns};
}

}  // namespace ckpt::cli
