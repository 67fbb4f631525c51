#include "base/settings/settings.h"
#include "base/memory/fork_path.h"

#include "base/settings/settings_table.h"
#include "base/preload_rules.h"

namespace ckpt {

CKPT_START_PATH Result<Settings> parse_settings(SettingLookup lookup, void* context) {
  Settings s;
  for (const Setting& setting : setting_table()) {
    const char* text = lookup(setting.variable, context);
    if (text == nullptr || *text == '\0') continue;
    CKPT_TRY(setting.parse(text, s));
  }
  if (s.pool_bytes < 16 * s.segment_bytes) {
    return make_error(ExitCode::kUsage, 0,
                      "CKPT_POOL={} bytes must hold at least 16 segments of {} bytes and at most 64G",
                      s.pool_bytes, s.segment_bytes);
  }
  return s;
}

}  // namespace ckpt
