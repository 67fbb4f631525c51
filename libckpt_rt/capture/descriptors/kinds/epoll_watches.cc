#include "libckpt_rt/capture/descriptors/kinds/epoll_watches.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include "image/format/records/descriptor_records.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// Watches of a number in these lines of an epoll's fdinfo.
uint32_t count_watches(std::string_view text, int number) {
  char head[32];
  const size_t length =
      static_cast<size_t>(fmt::format_to_n(head, sizeof(head), "tfd: {:8} ", number).out - head);
  uint32_t count = 0;
  for (size_t at = 0; (at = text.find({head, length}, at)) != text.npos; at += length) ++count;
  return count;
}

}  // namespace

// The descriptor of the open file that a watch is on. The watch tells the number at which the file was
// registered, which another file may have now, also one of the same inode: all eventfds share one, as do all
// timerfds and epolls. `before`: the lines of the epoll's fdinfo before that of the watch. nullptr: no
// descriptor is known to be that file; is_another: the one with that number is not.
const CapturedDescriptor* EpollWatches::watched_by(const CapturedDescriptor& epoll, int number,
                                                   uint64_t inode, std::string_view before,
                                                   bool& is_another) const {
  for (const auto& d : files_.entries()) {
    // No other open file has a socket's inode. The search below looks at the watches one by one, which takes
    // long in a server with thousands of connections.
    if (d.fd == number && d.now.inode == inode && S_ISSOCK(d.now.mode) && !d.in_flight) return &d;
  }
  struct {
    uint32_t epoll, number, earlier;
  } slot{static_cast<uint32_t>(epoll.fd), static_cast<uint32_t>(number), count_watches(before, number)};
  auto compare_with_watch = [&](const CapturedDescriptor& d) {
    constexpr int kCompareWatched = 7;  // KCMP_EPOLL_TFD of linux/kcmp.h
    return sys::call(__NR_kcmp, access_.tid_of(d), access_.tid_of(epoll), kCompareWatched, d.fd, &slot);
  };
  for (const auto& d : files_.entries()) {
    if (d.fd != number || d.in_flight) continue;
    const long order = compare_with_watch(d);
    if (order == 0 || (order < 0 && d.now.inode == inode)) return &d;  // below 0: the kernel does not compare
    is_another = order > 0;
  }
  for (const auto& d : files_.entries()) {
    if (d.now.inode == inode && d.fd != number && compare_with_watch(d) == 0) return &d;
  }
  return nullptr;
}

Result<bool> EpollWatches::put(const CapturedDescriptor& epoll, std::string_view line,
                               std::string_view before, ByteWriter& out) {
  uint64_t number = 0, events = 0, data = 0, inode = 0;
  if (!number_after(line, "tfd:", 10, number) || !number_after(line, "events:", 16, events) ||
      !number_after(line, "data:", 16, data))
    return false;
  const EpollWatchDetail watch{static_cast<int32_t>(number), static_cast<uint32_t>(events), data};
  const CapturedDescriptor* other = nullptr;
  bool is_another = false;
  if (access_.stands() && number_after(line, "ino:", 16, inode))
    other = watched_by(epoll, watch.fd, inode, before, is_another);
  if (epoll.in_flight && (other == nullptr || other->in_flight)) {
    CKPT_TRY(notes_.add(
        kChanged,
        "an epoll that was sent through a socket and not received watches a file that is not among "
        "the program's descriptors: that watch is lost after a restart, unless another process of the "
        "job has both"));
    return true;
  }
  if (other == nullptr && is_another) {
    CKPT_TRY(notes_.add(
        kChanged,
        "descriptor {} (an epoll) watches a file that was registered as descriptor {}, and that no "
        "descriptor leads to any more: that watch is lost after a restart, unless another process of "
        "the job shares the epoll and has the file",
        epoll.fd, watch.fd));
    return true;
  }
  if (other != nullptr && other->fd != watch.fd) {
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kMovedWatch), sizeof(MovedWatchDetail)});
    out.put(MovedWatchDetail{watch, other->fd, 0});
    return true;
  }
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kEpollWatch), sizeof(watch)});
  out.put(watch);
  return true;
}

}  // namespace ckpt
