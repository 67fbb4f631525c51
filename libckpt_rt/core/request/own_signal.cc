#include "libckpt_rt/core/request/own_signal.h"

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit OwnSignal own_signal;

}  // namespace ckpt
