#include "libckpt_rt/core/process/seccomp/seccomp_state.h"

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit SeccompState seccomp_state;

}  // namespace ckpt
