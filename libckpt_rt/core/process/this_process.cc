#include "libckpt_rt/core/process/this_process.h"

#include <time.h>

#include <cstring>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit ThisProcess this_process;

CKPT_START_PATH void new_run_id() {
  uint8_t(&id)[16] = this_process.run_id;
  const long n = sys::call(__NR_getrandom, id, sizeof(id), 0L);
  if (n == sizeof(id)) return;
  // No entropy yet, early at boot: time and pid tell runs apart.
  const int64_t parts[2] = {now_ns(CLOCK_REALTIME), sys::getpid()};
  static_assert(sizeof(parts) == sizeof(id));
  std::memcpy(id, parts, sizeof(id));
}

}  // namespace ckpt
