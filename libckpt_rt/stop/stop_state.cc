#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit StopState stop_state;

}  // namespace ckpt
