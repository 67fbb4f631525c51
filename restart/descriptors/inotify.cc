#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "restart/descriptors/builder.h"

// inotify(7). The kernel numbers the watches of a descriptor from 1 on and gives no number twice: between
// those of the program, others are put on a file of ours and taken off again. Each that is taken off leaves
// an event, IN_IGNORED; these are read before the program comes. Where a watched file is gone, that of its
// watch stays: so the kernel says it. Events that waited at the checkpoint nobody knows: the program finds
// IN_Q_OVERFLOW, by which the kernel says that events were lost, and looks at its files anew.

namespace ckpt {
namespace {

// 1 us for each number in between.
constexpr int32_t kHighestWatch = 4 << 20;

// A file of ours to watch, by a name that leads to it.
struct StandIn {
  ScopedFd file;
  std::string name;
  StandIn()
      : file(memfd_create("watched", MFD_CLOEXEC)), name("/proc/self/fd/" + std::to_string(file.get())) {}
};

void drop_events(int fd) {
  alignas(inotify_event) char events[16384];
  int waiting = 0;
  while (ioctl(fd, FIONREAD, &waiting) == 0 && waiting != 0 && read(fd, events, sizeof(events)) > 0) {
  }
}

// Uses up all numbers below `watch`, of which `next` is the first. False: it cannot be had.
bool skip_to(int fd, const StandIn& stand_in, int32_t& next, int32_t watch) {
  constexpr int32_t kAtOnce = 1024;  // the queue of events has an end
  if (watch < next || watch > kHighestWatch) return false;
  for (; next < watch; ++next) {
    if (inotify_add_watch(fd, stand_in.name.c_str(), IN_OPEN) != next || inotify_rm_watch(fd, next) != 0)
      return false;
    if (next % kAtOnce == 0) drop_events(fd);
  }
  return true;
}

// Leaves IN_Q_OVERFLOW in an empty queue: fills it until it overflows, and reads all else. What happens to
// watched files while it is full is one more event that is lost. False: it has room for more than we fill.
bool overflow(int fd) {
  constexpr int kAtOnce = 1024, kMost = 1 << 20;
  constexpr int kEvent = sizeof(inotify_event);  // without a name
  const StandIn stand_in;
  const int watch = inotify_add_watch(fd, stand_in.name.c_str(), IN_ATTRIB | IN_MODIFY);
  int waiting = 0, before = 0;
  // An event that equals the last one is merged with it.
  for (int i = 0; watch >= 0 && i < kMost; ++i) {
    if ((i % 2 == 0 ? fchmod(stand_in.file.get(), 0600) : ftruncate(stand_in.file.get(), 0)) != 0) break;
    if (i % kAtOnce != kAtOnce - 1) continue;
    before = waiting;
    if (ioctl(fd, FIONREAD, &waiting) != 0 || waiting - before < kAtOnce * kEvent) break;
  }
  const bool is_full = waiting >= kEvent && waiting - before < kAtOnce * kEvent;
  if (watch >= 0) inotify_rm_watch(fd, watch);  // IN_IGNORED finds no room
  alignas(inotify_event) char events[16384];
  // From the first read on others may come behind it.
  for (int left = waiting - kEvent; is_full && left > 0;) {
    const ssize_t n = read(fd, events, std::min<size_t>(sizeof(events), static_cast<size_t>(left)));
    if (n <= 0) return false;
    left -= static_cast<int>(n);
  }
  if (!is_full) drop_events(fd);
  return is_full;
}

}  // namespace

Result<ScopedFd> DescriptorBuilder::make_inotify(const ParsedOpenFile& file) {
  ScopedFd made(inotify_init1(IN_CLOEXEC | (static_cast<int>(file.record.open_flags) & O_NONBLOCK)));
  if (!made.valid()) {
    return make_error(ExitCode::kSystem, errno, "{} cannot be made again ({})",
                      describe(file, first_descriptor(file)), errno_name(errno));
  }
  if (!options_.watch_later || first_descriptor(file) < 0) add_inotify_watches(file, made.get());
  return made;
}

void DescriptorBuilder::add_inotify_watches(const ParsedOpenFile& file, int inotify) const {
  struct Watch {
    InotifyWatchDetail detail;
    std::string path;
  };
  std::vector<Watch> watches;
  for_each_detail<InotifyWatchDetail>(
      file, OpenFileDetail::kInotifyWatch, [&](const InotifyWatchDetail& w, Blob after) {
        const size_t length = std::min<size_t>(w.path_len, after.size());
        watches.push_back({w, std::string(reinterpret_cast<const char*>(after.data()), length)});
      });
  std::sort(watches.begin(), watches.end(),
            [](const Watch& a, const Watch& b) { return a.detail.watch < b.detail.watch; });
  const StandIn stand_in;
  int32_t next = 1;
  std::vector<StandIn> gone;
  std::vector<int32_t> gone_numbers;
  for (const Watch& w : watches) {
    if (!skip_to(inotify, stand_in, next, w.detail.watch)) {
      say("{}: watch {} cannot be put on again: its number cannot be had",
          describe(file, first_descriptor(file)), w.detail.watch);
      continue;
    }
    const int got =
        w.path.empty() ? -1 : inotify_add_watch(inotify, w.path.c_str(), w.detail.mask | IN_MASK_CREATE);
    if (got == w.detail.watch) {
      ++next;
      continue;
    }
    const int error = w.path.empty() ? ENOENT : errno;
    if (!w.path.empty()) {
      say("{}: {} cannot be watched ({}): the program is told that it is gone",
          describe(file, first_descriptor(file)), w.path, errno_name(error));
    }
    gone.emplace_back();
    if (inotify_add_watch(inotify, gone.back().name.c_str(), IN_OPEN) == w.detail.watch) {
      gone_numbers.push_back(w.detail.watch);
      ++next;
    } else {
      say("{}: watch {} cannot be put on again ({}): the program is not told that its file is gone",
          describe(file, first_descriptor(file)), w.detail.watch, errno_name(errno));
    }
  }
  drop_events(inotify);
  if ((file.record.flags & kOpenFileEventsLost) != 0) {
    say("{}: events that waited in it are lost: {}", describe(file, first_descriptor(file)),
        overflow(inotify)
            ? "the program is told so, by IN_Q_OVERFLOW"
            : "the program is not told, for the queue is too long (fs.inotify.max_queued_events)");
  }
  for (const int32_t number : gone_numbers) inotify_rm_watch(inotify, number);
}

}  // namespace ckpt
