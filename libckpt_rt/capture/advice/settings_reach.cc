#include "libckpt_rt/capture/advice/settings_reach.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::memory_settings {

constinit Reach guards_reach, policies_reach;

}  // namespace ckpt::memory_settings
