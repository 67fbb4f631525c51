#include "libckpt_rt/checkpoint/stages/restart_verdict.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>

#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/capture/sockets/socket_mappings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// Of a TCP socket, which the program still has: where what it receives is mapped, and nothing is yet.
bool is_noted(const Mapping& m, const ProcessCapture& capture) {
  if (m.prot != PROT_READ) return false;
  const int fd = capture.descriptors.tcp_socket(m.inode);
  return fd >= 0 && socket_mappings::note(m.range, m.file_offset, (m.map_flags & kMapPrivate) == 0, fd);
}

LostMapping lost_by_restart(const Mapping& m, const ProcessCapture& capture) {
  const std::string_view path(m.path, m.path_len);
  if (path.starts_with(aio_contexts::kPath) && aio_contexts::note(m.range)) return {};
  if (!path.starts_with(socket_mappings::kPath)) return what_is_lost(m);
  if (is_noted(m, capture)) return {};
  return {"memory of a socket", "what the kernel and others put there no other process can make again"};
}

}  // namespace

bool can_be_restarted(const ProcessCapture& capture, Workspace& space) {
  socket_mappings::begin();
  for (const Mapping& m : capture.map.mappings()) {
    const LostMapping lost = lost_by_restart(m, capture);
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
