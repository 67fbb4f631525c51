#include "libckpt_rt/capture/descriptors/kinds/held_info.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>

#include "image/format/records/fanotify_records.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// fdinfo of this many files is held open from prepare to release, for one pread in the stop: it shows
// their locks. Of further files only those that were locked in prepare are looked at, see
// note_late_locks(). Counters and the like have as many.
constexpr uint32_t kMaxProcFiles = 64, kMaxCounters = 1024;

// Kinds of files whose fdinfo shows locks that programs take. (A pipe may be locked, too: a pipe that is
// locked in prepare is looked at again.)
bool is_lockable(OpenFileKind kind) {
  return kind == OpenFileKind::kRegular || kind == OpenFileKind::kDirectory ||
         kind == OpenFileKind::kDevice || kind == OpenFileKind::kFifo || kind == OpenFileKind::kMemfd;
}

// State that no sample shows, and which files share one inode number: looked at again in the stop.
bool is_volatile(OpenFileKind kind) {
  if (kind == kFanotify) return true;
  switch (kind) {
    case OpenFileKind::kEventFd:
    case OpenFileKind::kEpoll:
    case OpenFileKind::kTimerFd:
    case OpenFileKind::kSignalFd:
    case OpenFileKind::kInotify:
    case OpenFileKind::kPidFd:
      return true;
    default:
      return false;
  }
}

}  // namespace

void HeldInfo::begin() {
  locked_files_ = counters_ = 0;
  // The files held open until the stop must leave numbers for all else, however low the limit.
  rlimit limit{};
  const bool is_limited = sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &limit) == 0;
  most_number_ = is_limited ? static_cast<long>(std::min<uint64_t>(limit.rlim_cur / 2, INT_MAX)) : INT_MAX;
  holds_any_ = true;
}

void HeldInfo::hold(CapturedDescriptor& d) {
  uint32_t* files = is_lockable(d.kind) ? &locked_files_ : is_volatile(d.kind) ? &counters_ : nullptr;
  if (files == nullptr || *files >= (files == &counters_ ? kMaxCounters : kMaxProcFiles)) return;
  const long file = sys::call(__NR_openat, AT_FDCWD, TaskPath(access_.tid(), "fdinfo", d.fd).c_str(),
                              O_RDONLY | O_CLOEXEC, 0);
  if (file > most_number_) {
    sys::call(__NR_close, file);
    return;
  }
  d.proc_fd = sys::failed(file) ? -1 : static_cast<int>(file);
  ++*files;
}

// While others sample: what does not need their answers.
Result<void> HeldInfo::read_held() {
  for (auto& d : files_.entries()) {
    // An epoll comes later: its watches are compared with all descriptors, which must have been sampled.
    if (!d.looked || d.proc_fd < 0 || d.kind == OpenFileKind::kEpoll) continue;
    if (is_volatile(d.kind)) {
      CKPT_TRY(read_counter(d));
    } else if (is_lockable(d.kind)) {
      CKPT_TRY(classifier_.read_locks(d));
      d.read_again = true;
    }
  }
  return {};
}

Result<void> HeldInfo::read_rest() {
  for (auto& d : files_.entries()) {
    if (d.read_again) continue;
    if (is_volatile(d.kind)) {
      OpenFileKind before = d.kind;
      CKPT_TRY(classifier_.classify(d));
      if (d.kind != before) files_.note_change();
    } else if (d.has_locks || (is_lockable(d.kind) && d.proc_fd >= 0)) {
      CKPT_TRY(classifier_.read_locks(d));
    }
  }
  return {};
}

// All of these have one inode number. fdinfo shows which kind it is, but for those without a single
// watch; the link says it of all, at four times the price.
Result<void> HeldInfo::read_counter(CapturedDescriptor& d) {
  FdInfo info;
  if (reread_fdinfo(d.proc_fd, access_.text(), files_.arena(), info) <= 0) return {};
  const char* mark = d.kind == OpenFileKind::kEventFd    ? "eventfd-count:"
                     : d.kind == OpenFileKind::kTimerFd  ? "clockid:"
                     : d.kind == OpenFileKind::kSignalFd ? "sigmask:"
                     : d.kind == OpenFileKind::kPidFd    ? "Pid:"
                     : d.kind == OpenFileKind::kInotify  ? "inotify wd:"
                     : d.kind == kFanotify               ? "fanotify flags:"
                                                         : "tfd:";
  if (info.text.find(mark) == std::string_view::npos) return {};
  d.read_again = true;
  d.eventfd_id = info.eventfd_id;
  return classifier_.read_details(d, info);
}

// A lock that was not there in prepare and is there now, on a file that was not looked at in the stop,
// was taken just before or just after it: that cannot be told.
void HeldInfo::note_late_locks(DescriptorNotes& notes) const {
  for (const auto& d : files_.entries()) {
    if (!is_lockable(d.kind) || d.proc_fd >= 0 || d.has_locks || d.in_flight) continue;
    FdInfo info;
    if (read_fdinfo(access_.tid(), d.fd, access_.text(), files_.arena(), info) < 0 || !info.has_locks)
      continue;
    // The program runs: another file may have the number by now.
    struct stat st;
    if (stat_descriptor(access_.tid(), d.fd, st) < 0 || st.st_ino != d.now.inode || st.st_dev != d.now.device)
      continue;
    (void)notes.add(kChanged,
                    "descriptor {} ({}): a lock taken around the moment of the checkpoint is not restored",
                    d.fd, d.path);
  }
}

void HeldInfo::close_all() {
  for (CapturedDescriptor& d : files_.entries()) {
    if (d.proc_fd >= 0) sys::call(__NR_close, d.proc_fd);
    d.proc_fd = -1;
  }
  holds_any_ = false;
}

}  // namespace ckpt
