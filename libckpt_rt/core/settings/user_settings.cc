#include "libckpt_rt/core/settings/user_settings.h"

#include "base/fork_path.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
constinit Settings kept;
}

const Settings& user_settings() { return kept; }
CKPT_START_PATH void remember_user_settings(const Settings& settings) { kept = settings; }

}  // namespace ckpt
