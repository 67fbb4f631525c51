// What the user has set (base/settings/settings.h): read once from the environment, and never changed. What a
// checkpoint has made of it: checkpoint/in_force.h.
//
// Owner:     libckpt_rt, in its data, so that an image holds it and a restarted process has the same.
// Callers:   any thread: read only. remember_user_settings(): the preload constructor, once.
#pragma once

#include "base/settings/settings.h"

namespace ckpt {

// Before remember_user_settings(): the defaults.
const Settings& user_settings();
void remember_user_settings(const Settings& settings);

}  // namespace ckpt
