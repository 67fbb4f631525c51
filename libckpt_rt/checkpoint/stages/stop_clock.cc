#include "libckpt_rt/checkpoint/stages/stop_clock.h"

#include "base/clock.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

void StopClock::end(Part part) { ends_ns_[part] = now_ns(); }

void StopClock::log(int log, int64_t pause_ns, const Faults& faults) const {
  int64_t us[kParts];
  for (int64_t i = 0, before = began_ns_; i < kParts; before = ends_ns_[i++]) {
    us[i] = ends_ns_[i] == 0 ? 0 : (ends_ns_[i] - before) / 1000;
  }
  // All threads have left, or one that waited in the kernel still waits for a processor.
  int64_t last = 0;
  if (!stop_state.world.all_left(&last)) last = now_ns();
  log_format(log,
             "stop {} us (of those that waited {}): threads {}, mappings {}, descriptors {}, process {}, "
             "protection {}, copies {}; {} faults; ahead "
             "of it {} passes, {} faults",
             pause_ns / 1000, (last - called_ns_) / 1000, us[kThreads], us[kMappings], us[kDescriptors],
             us[kProcess], us[kProtection], us[kCopies], faults.since, faults.passes, faults.ahead);
}

}  // namespace ckpt
