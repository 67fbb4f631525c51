#include "libckpt_rt/stop/stop_state.h"
#include "base/memory/large_table.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit StopState stop_state;
CKPT_LARGE_TABLE constinit PendingSignals pending_at_stop;

}  // namespace ckpt
