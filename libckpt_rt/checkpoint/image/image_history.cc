#include "libckpt_rt/checkpoint/image/image_history.h"

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit ImageHistory image_history;

}  // namespace ckpt
