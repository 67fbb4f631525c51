#include "libckpt_rt/capture/descriptors/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>

#include "libckpt_rt/capture/descriptors/noted/file_signals.h"
#include "libckpt_rt/capture/descriptors/pipe_kinds.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/sample.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// fdinfo of this many files is held open from prepare to release, for one pread in the stop: it shows
// their locks. Of further files only those that were locked in prepare are looked at, see
// note_late_locks(). Counters and the like have as many.
constexpr uint32_t kMaxProcFiles = 64, kMaxCounters = 1024;
constexpr uint32_t kMostPathsInStop = 256;  // 3 µs each

// Kinds of files whose fdinfo shows locks that programs take. (A pipe may be locked, too: a pipe that is
// locked in prepare is looked at again.)
bool is_lockable(OpenFileKind kind) {
  return kind == OpenFileKind::kRegular || kind == OpenFileKind::kDirectory ||
         kind == OpenFileKind::kDevice || kind == OpenFileKind::kFifo || kind == OpenFileKind::kMemfd;
}

// State that no sample shows, and which files share one inode number: looked at again in the stop.
bool is_volatile(OpenFileKind kind) {
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

Result<void> DescriptorCapture::prepare(Arena& arena, int tid) {
  release();
  attribute_ = nullptr;
  files_.begin(arena);
  contents_ = ArenaVector<Content>(arena);
  early_contents_ = ArenaVector<Content>(arena);
  early_ = ArenaVector<EarlyCopy>(arena);
  mapped_shared_ = ArenaVector<uint64_t>(arena);
  notes_.begin(arena);
  senders_ = ArenaVector<Sender>(arena);
  unsent_ = ArenaVector<Unsent>(arena);
  complete_ = false;
  sampling_.forget();
  CKPT_TRY(access_.begin(arena, tid));

  ArenaVector<int> fds(arena);
  long r = list_descriptors(tid, fds);
  if (r == -ENOMEM) return arena_full(files_.arena());
  if (r < 0) {
    return make_error(ExitCode::kSystem, static_cast<int>(r),
                      "cannot list the descriptors of thread {} ({}): is /proc mounted?", tid,
                      errno_name(static_cast<int>(r)));
  }
  if (!files_.entries().reserve(fds.size() + fds.size() / 8 + 16)) return arena_full(files_.arena());
  uint32_t locked_files = 0, counters = 0;
  // The files held open until the stop must leave numbers for all else, however low the limit.
  rlimit limit{};
  const bool is_limited = sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &limit) == 0;
  const long most_number =
      is_limited ? static_cast<long>(std::min<uint64_t>(limit.rlim_cur / 2, INT_MAX)) : INT_MAX;
  holds_files_ = true;
  for (int fd : fds) {
    CapturedDescriptor d = unknown_descriptor(fd);
    if (!sample_from_outside(tid, fd, access_.text(), arena, d.now))
      continue;  // closed since the list was made
    d.offset_ahead = d.now.offset;
    CKPT_TRY(classify(d));
    uint32_t* files = is_lockable(d.kind) ? &locked_files : is_volatile(d.kind) ? &counters : nullptr;
    if (files != nullptr && *files < (files == &counters ? kMaxCounters : kMaxProcFiles)) {
      const long file =
          sys::call(__NR_openat, AT_FDCWD, TaskPath(tid, "fdinfo", fd).c_str(), O_RDONLY | O_CLOEXEC, 0);
      if (file > most_number) {
        sys::call(__NR_close, file);
      } else {
        d.proc_fd = sys::failed(file) ? -1 : static_cast<int>(file);
        ++*files;
      }
    }
    if (!files_.entries().push_back(d)) return arena_full(files_.arena());
  }
  CKPT_TRY(files_.sort_by_open_file());
  return copy_large_early();
}

Result<void> DescriptorCapture::recheck_stopped(int tid, OtherThreads sharers) {
  if (!sampling_.is_under_way()) CKPT_TRY(begin_sampling(tid, sharers));
  access_.stand(true);
  CKPT_TRY(look_from_agent());
  await_samples();
  files_.take_order_checks();
  CKPT_TRY(sampling_.take(sharers));
  CKPT_TRY(find_changes());
  CKPT_TRY(read_volatile());
  if (!files_.has_changed() && !files_.is_refused()) {
    auto unchanged = files_.sharing_unchanged();
    if (!unchanged.ok()) return unchanged.error();
    if (!*unchanged) files_.note_change();
  }
  if (files_.has_changed() || files_.is_refused()) CKPT_TRY(files_.sort_by_open_file());
  SocketLook sockets(files_.arena());
  CKPT_TRY(look_at_sockets(sockets));
  if (files_.has_changed()) CKPT_TRY(files_.sort_by_open_file());
  files_.number_open_files();
  CKPT_TRY(describe_sockets(sockets));
  CKPT_TRY(look_at_terminals_stopped());
  decide_kinds_of_ends(files_, access_, has_partners_);
  CKPT_TRY(list_owners());
  CKPT_TRY(copy_contents_stopped());
  // Another member may have one as well: the coordinator compares them.
  if (!has_partners_) close_in_flight();
  // hold_back_senders() borrows them once more.
  if (senders_.size() == 0) access_.give_up();
  complete_ = true;
  return write_notes();
}

Result<void> DescriptorCapture::begin_sampling(int tid, OtherThreads sharers) {
  access_.begin_sampling(tid);
  return sampling_.begin(sharers);
}

// Threads that are told by a signal what happens to a file.
Result<void> DescriptorCapture::list_owners() {
  file_signals::begin();
  for (const auto& d : files_.entries()) {
    if (d.in_flight || d.now.owner == 0 || d.now.owner_type != F_OWNER_TID ||
        file_signals::add_thread(d.fd, d.now.owner))
      continue;
    return notes_.add(kChanged,
                      "descriptor {} ({}): the thread {}, which gets signals of it, does not after a restart",
                      d.fd, d.path, d.now.owner);
  }
  return {};
}

// While others sample: what does not need their answers.
Result<void> DescriptorCapture::look_from_agent() {
  for (auto& d : files_.entries()) {
    // An epoll comes later: its watches are compared with all descriptors, which must have been sampled.
    if (!d.looked || d.proc_fd < 0 || d.kind == OpenFileKind::kEpoll) continue;
    if (is_volatile(d.kind)) {
      CKPT_TRY(read_counter(d));
    } else if (is_lockable(d.kind)) {
      CKPT_TRY(read_locks(d));
      d.read_again = true;
    }
  }
  sampling_.help();
  return {};
}

Result<void> DescriptorCapture::find_changes() {
  // After the stop its name may be one that the program gives it only then: a rename to that name would fail.
  uint32_t most = kMostPathsInStop;
  for (auto& d : files_.entries()) {
    if (d.looked && d.named && d.path_in_doubt && d.kind == OpenFileKind::kRegular && most > 0) {
      --most;
      CKPT_TRY(read_path(d));
      d.path_in_doubt = false;
    }
    if (!d.looked) {
      CKPT_TRY(classify(d));
    } else if (!d.named && (d.kind == OpenFileKind::kRegular || d.kind == OpenFileKind::kDirectory ||
                            d.kind == OpenFileKind::kFifo || d.kind == OpenFileKind::kDevice ||
                            d.kind == OpenFileKind::kTerminal)) {
      CKPT_TRY(classify(d));  // renamed, or without this name now
    }
  }
  return {};
}

Result<void> DescriptorCapture::read_volatile() {
  for (auto& d : files_.entries()) {
    if (d.read_again) continue;
    if (is_volatile(d.kind)) {
      OpenFileKind before = d.kind;
      CKPT_TRY(classify(d));
      if (d.kind != before) files_.note_change();
    } else if (d.has_locks || (is_lockable(d.kind) && d.proc_fd >= 0)) {
      CKPT_TRY(read_locks(d));
    }
  }
  return {};
}

// All of these have one inode number. fdinfo shows which kind it is, but for those without a single
// watch; the link says it of all, at four times the price.
Result<void> DescriptorCapture::read_counter(CapturedDescriptor& d) {
  FdInfo info;
  if (reread_fdinfo(d.proc_fd, access_.text(), files_.arena(), info) <= 0) return {};
  const char* mark = d.kind == OpenFileKind::kEventFd    ? "eventfd-count:"
                     : d.kind == OpenFileKind::kTimerFd  ? "clockid:"
                     : d.kind == OpenFileKind::kSignalFd ? "sigmask:"
                     : d.kind == OpenFileKind::kPidFd    ? "Pid:"
                     : d.kind == OpenFileKind::kInotify  ? "inotify wd:"
                                                         : "tfd:";
  if (info.text.find(mark) == std::string_view::npos) return {};
  d.read_again = true;
  d.eventfd_id = info.eventfd_id;
  return read_details(d, info);
}

// Of many files: one that is elsewhere now had been renamed before the stop, or was after it.
void DescriptorCapture::refresh_paths() {
  for (auto& d : files_.entries()) {
    if (!d.path_in_doubt || !d.named) continue;
    CapturedDescriptor now = d;
    if (read_path(now).ok() && now.named) d = now;
  }
}

// Files that lost the name by which they were opened just ahead of the stop, or whose other name moved: such
// a file is saved as one without a name, unless a name is found now.
void DescriptorCapture::find_late_names() {
  access_.stand(false);
  for (auto& d : files_.entries()) {
    if ((d.flags & kOpenFileDeleted) == 0 || d.now.links == 0 || d.kind == OpenFileKind::kOther) continue;
    if (d.kind == OpenFileKind::kRegular && take_other_name(d, std::string_view(d.path, d.path_len))) {
      d.flags &= ~static_cast<uint32_t>(kOpenFileDeleted);
      const uint64_t object = object_number(d.now.device, d.now.inode);
      for (size_t i = 0; i < contents_.size(); ++i) {
        if (contents_[i].object == object) contents_[i].length = 0;  // serialize() writes none of it
      }
    } else if (!d.shares && has_names_of_others(d)) {
      (void)notes_.add(
          kChanged,
          "descriptor {} ({}): it has another name, which was not found, or something is mounted over "
          "its name: after a restart it is a copy of its own, and what is written to one is not in the "
          "other",
          d.fd, d.path);
    }
  }
}

// A lock that was not there in prepare and is there now, on a file that was not looked at in the stop,
// was taken just before or just after it: that cannot be told.
void DescriptorCapture::note_late_locks() {
  for (auto& d : files_.entries()) {
    if (!is_lockable(d.kind) || d.proc_fd >= 0 || d.has_locks || d.in_flight) continue;
    FdInfo info;
    if (read_fdinfo(access_.tid(), d.fd, access_.text(), files_.arena(), info) < 0 || !info.has_locks)
      continue;
    // The program runs: another file may have the number by now.
    struct stat st;
    if (stat_descriptor(access_.tid(), d.fd, st) < 0 || st.st_ino != d.now.inode || st.st_dev != d.now.device)
      continue;
    (void)notes_.add(kChanged,
                     "descriptor {} ({}): a lock taken around the moment of the checkpoint is not restored",
                     d.fd, d.path);
  }
}

void DescriptorCapture::release() {
  await_samples();
  if (senders_.size() != 0) hold_back_senders();
  if (unsent_.size() != 0) send_the_rest();
  // Once only: the arena may be gone when the destructor comes.
  if (holds_files_) {
    if (complete_) {
      refresh_paths();
      find_late_names();
      note_late_locks();
      name_watches();
    }
    for (auto& d : files_.entries()) {
      if (d.proc_fd >= 0) sys::call(__NR_close, d.proc_fd);
      d.proc_fd = -1;
    }
    holds_files_ = false;
  }
  close_in_flight();
  close_copy_pipe();
  access_.give_up();
}

}  // namespace ckpt
