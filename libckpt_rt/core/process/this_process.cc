#include "libckpt_rt/core/process/this_process.h"

#include <time.h>

#include <cstring>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "base/sys.h"
#include "image/format/image_format.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit ThisProcess this_process;

CKPT_START_PATH void new_run_id(const uint8_t* job) {
  uint8_t(&id)[16] = this_process.run_id;
  const long n = sys::call(__NR_getrandom, id, sizeof(id), 0L);
  // No entropy yet, early at boot: time and pid tell runs apart.
  if (n != sizeof(id)) {
    const int64_t parts = now_ns(CLOCK_REALTIME) ^ int64_t { sys::getpid() } << 40;
    static_assert(sizeof(parts) == kRunIdOfJob);
    std::memcpy(id, &parts, sizeof(parts));
  }
  std::memcpy(id + kRunIdOfJob, job, sizeof(id) - kRunIdOfJob);
}

}  // namespace ckpt
