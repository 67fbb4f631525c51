#include "libckpt_rt/core/settings/user_settings.h"

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
constinit Settings kept;
}

const Settings& user_settings() { return kept; }
void remember_user_settings(const Settings& settings) { kept = settings; }

}  // namespace ckpt
