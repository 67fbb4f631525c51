#include "libckpt_rt/capture/advice/kept_reach.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::kept_settings {

constinit Reach guards_reach, policies_reach;

}  // namespace ckpt::kept_settings
