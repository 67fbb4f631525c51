#include "libckpt_rt/checkpoint/stages/restart_verdict.h"

#include <fmt/core.h>

#include <algorithm>

#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

bool can_be_restarted(const ProcessCapture& capture, Workspace& space) {
  for (const Mapping& m : capture.map.mappings()) {
    const LostMapping lost = what_is_lost(m);
    if (lost.what == nullptr) continue;
    constexpr size_t kMost = 512;
    char* text = static_cast<char*>(space.arena().allocate(kMost, 1));
    if (text == nullptr) return false;
    *fmt::format_to_n(text, kMost - 1, "the program has mapped {}{}{}{}: {}", lost.what,
                      m.path_len != 0 ? " (" : "", std::string_view(m.path, m.path_len),
                      m.path_len != 0 ? ")" : "", lost.why)
         .out = '\0';
    const auto notes = space.notes();
    const bool said = std::any_of(notes.begin(), notes.end(), [&](const NoteLine& n) {
      return std::string_view(n.text) == std::string_view(text);
    });
    if (!said) space.note(lost.forbids_restart ? 2 : 1, text);
  }
  const auto notes = space.notes();
  return capture.descriptors.can_come_back() &&
         std::none_of(notes.begin(), notes.end(), [](const NoteLine& n) { return n.severity == 2; });
}

}  // namespace ckpt
