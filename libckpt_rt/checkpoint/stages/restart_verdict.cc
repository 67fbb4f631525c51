#include "libckpt_rt/checkpoint/stages/restart_verdict.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/capture/rings/registered_files.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/capture/sockets/noted/socket_mappings.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/stop/stop_state.h"
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
  if (path == rings::kPath) return {};  // judge_rings()
  if (!path.starts_with(socket_mappings::kPath)) return what_is_lost(m);
  if (is_noted(m, capture)) return {};
  return {"memory of a socket", "what the kernel and others put there no other process can make again"};
}

bool is_ring(const CapturedDescriptor& d) { return std::string_view(d.path, d.path_len) == rings::kPath; }
bool is_ring(const Mapping& m) { return std::string_view(m.path, m.path_len) == rings::kPath; }

void note_watches_of_rings(const CapturedDescriptor& epoll) {
  const std::byte* at = epoll.details;
  const std::byte* const end = at + epoll.details_len;
  for (DetailHeader head; at + sizeof(head) <= end; at += sizeof(head) + head.length) {
    std::memcpy(&head, at, sizeof(head));
    if (head.type == static_cast<uint32_t>(OpenFileDetail::kMovedWatch)) {
      MovedWatchDetail moved;
      std::memcpy(&moved, at + sizeof(head), sizeof(moved));
      rings::note_moved_watch(moved.now);
    }
    if (head.type != static_cast<uint32_t>(OpenFileDetail::kEpollWatch)) continue;
    EpollWatchDetail watch;
    std::memcpy(&watch, at + sizeof(head), sizeof(watch));
    rings::note_watch(epoll.fd, watch.fd, watch.events, watch.data);
  }
}

void note_once(Workspace& space, uint32_t severity, const char* text) {
  const auto notes = space.notes();
  if (std::none_of(notes.begin(), notes.end(),
                   [&](const NoteLine& n) { return std::string_view(n.text) == std::string_view(text); }))
    space.note(severity, text);
}

template <typename... Args>
void refuse(Workspace& space, fmt::format_string<Args...> format, Args&&... args) {
  constexpr size_t kMost = 512;
  char* text = static_cast<char*>(space.arena().allocate(kMost, 1));
  if (text == nullptr) return;
  *fmt::format_to_n(text, kMost - 1, format, std::forward<Args>(args)...).out = '\0';
  note_once(space, kNoRestart, text);
}

// A line for each ring that cannot be made again.
void judge_rings(const ProcessCapture& capture, Workspace& space) {
  rings::begin();
  const auto descriptors = capture.descriptors.entries();
  bool any = rings::has_one_without_descriptor();
  for (const CapturedDescriptor& d : descriptors) {
    if (!is_ring(d)) continue;
    any = true;
    if (!d.in_flight) rings::note_number(d.now.inode, d.fd, (d.now.fd_flags & FD_CLOEXEC) != 0);
  }
  for (const Mapping& m : capture.map.mappings()) any = any || is_ring(m);
  if (!any) return;
  for (const CapturedDescriptor& d : descriptors) {
    if (!d.in_flight)
      rings::note_file(d.fd, d.now.device, d.now.inode, d.now.open_flags, {d.path, d.path_len});
    if (d.kind == OpenFileKind::kEventFd && !d.in_flight) rings::note_eventfd(d.fd, d.eventfd_id);
    if (d.kind == OpenFileKind::kEpoll && !d.shares && !d.in_flight) note_watches_of_rings(d);
  }
  char why[256];
  for (const Mapping& m : capture.map.mappings()) {
    if (!is_ring(m)) continue;
    rings::note_place(m);
    const bool has_descriptor = std::any_of(descriptors.begin(), descriptors.end(), [&](const auto& d) {
      return d.now.inode == m.inode && is_ring(d);
    });
    if (!has_descriptor)
      refuse(space, "the program has mapped an io_uring: {}",
             rings::refusal(m.inode, stop_state.threads, why));
  }
  for (const CapturedDescriptor& d : descriptors) {
    if (!is_ring(d) || d.shares) continue;
    const std::string_view text =
        d.in_flight ? "it waits in a socket" : rings::refusal(d.now.inode, stop_state.threads, why);
    if (!text.empty())
      refuse(space, "descriptor {} is an io_uring, which cannot be made again: {}", d.fd, text);
  }
  if (rings::has_one_without_descriptor())
    refuse(space, "the program has made an io_uring without a descriptor (IORING_SETUP_REGISTERED_FD_ONLY)");
}

}  // namespace

void note_lost_mappings(const ProcessCapture& capture, Workspace& space) {
  socket_mappings::begin();
  judge_rings(capture, space);
  if (capture.probe.value != 0)
    refuse(space,
           "the kernel has put a probe into the program's code at {:#x} (uprobes: perf, bpftrace, "
           "SystemTap), at which a "
           "restarted process would end: take the probe away, then another checkpoint",
           capture.probe.value);
  // On its stack is an address in memory of the kernel that no image has.
  else if (capture.map.has_probe_area)
    note_once(space, kChanged,
              "the kernel has put probes into the program (uprobes): a restarted process ends at the end of "
              "a function that was "
              "entered while there was a probe at its end (uretprobe)");
  for (const Mapping& m : capture.map.mappings()) {
    const LostMapping lost = lost_by_restart(m, capture);
    if (lost.what == nullptr) continue;
    constexpr size_t kMost = 512;
    char* text = static_cast<char*>(space.arena().allocate(kMost, 1));
    if (text == nullptr) {
      space.note(kNoRestart, "what the program has mapped cannot be told: no memory for the words");
      return;
    }
    *fmt::format_to_n(text, kMost - 1, "the program has mapped {}{}{}{}: {}", lost.what,
                      m.path_len != 0 ? " (" : "", std::string_view(m.path, m.path_len),
                      m.path_len != 0 ? ")" : "", lost.why)
         .out = '\0';
    note_once(space, lost.forbids_restart ? kNoRestart : kChanged, text);
  }
}

std::string_view why_no_restart(const ProcessCapture& capture, const Workspace& space) {
  for (const NoteLine& n : space.notes()) {
    if (n.severity == kNoRestart) return n.text;
  }
  return capture.descriptors.why_no_restart();
}

}  // namespace ckpt
