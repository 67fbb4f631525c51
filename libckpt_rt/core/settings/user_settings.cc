#include "libckpt_rt/core/settings/user_settings.h"

#include "base/memory/fork_path.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
constinit Settings remembered;
}

const Settings& user_settings() { return remembered; }
CKPT_START_PATH void remember_user_settings(const Settings& settings) { remembered = settings; }

}  // namespace ckpt
