#include "libckpt_rt/capture/descriptors/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/checks/check.h"
#include "base/clock.h"
#include "libckpt_rt/capture/descriptors/note.h"
#include "libckpt_rt/capture/descriptors/noted/file_signals.h"
#include "libckpt_rt/capture/descriptors/sample.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr size_t kTextBytes = 64 << 10;
constexpr size_t kAtOnce = 32;  // samples that a thread takes
// fdinfo of this many files is held open from prepare to release, for one pread in the stop: it shows
// their locks. Of further files only those that were locked in prepare are looked at, see
// note_late_locks(). Counters and the like have as many.
constexpr uint32_t kMaxProcFiles = 64, kMaxCounters = 1024;
constexpr uint32_t kMostPathsInStop = 256;  // 3 µs each

// Everything that tells one file from another, and a way of opening it from another way.
bool same_file(const DescriptorSample& a, const DescriptorSample& b) {
  constexpr uint32_t kFixedFlags = O_ACCMODE | O_PATH | O_DIRECTORY;
  return a.device == b.device && a.inode == b.inode && a.rdev == b.rdev && a.mode == b.mode &&
         (a.links == 0) == (b.links == 0) && (a.open_flags & kFixedFlags) == (b.open_flags & kFixedFlags);
}

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

Result<void> DescriptorCapture::arena_full() const {
  return make_error(ExitCode::kInternal, ENOMEM, "no memory to record the descriptors ({} bytes used)",
                    arena_->used());
}

Result<void> DescriptorCapture::prepare(Arena& arena, int tid) {
  release();
  arena_ = &arena;
  attribute_ = nullptr;
  tid_ = tid;
  entries_ = ArenaVector<CapturedDescriptor>(arena);
  order_ = ArenaVector<uint32_t>(arena);
  contents_ = ArenaVector<Content>(arena);
  early_contents_ = ArenaVector<Content>(arena);
  early_ = ArenaVector<EarlyCopy>(arena);
  mapped_shared_ = ArenaVector<uint64_t>(arena);
  notes_ = ArenaVector<Note>(arena);
  senders_ = ArenaVector<Sender>(arena);
  unsent_ = ArenaVector<Unsent>(arena);
  has_passing_ = false;
  kcmp_refused_ = structure_changed_ = complete_ = sampling_ = standing_ = false;
  auto* text = static_cast<char*>(arena.allocate(kTextBytes));
  if (text == nullptr) return arena_full();
  text_ = {text, kTextBytes};

  ArenaVector<int> fds(arena);
  long r = list_descriptors(tid, fds);
  if (r == -ENOMEM) return arena_full();
  if (r < 0) {
    return make_error(ExitCode::kSystem, static_cast<int>(r),
                      "cannot list the descriptors of thread {} ({}): is /proc mounted?", tid,
                      errno_name(static_cast<int>(r)));
  }
  if (!entries_.reserve(fds.size() + fds.size() / 8 + 16)) return arena_full();
  uint32_t locked_files = 0, counters = 0;
  // The files held open until the stop must leave numbers for all else, however low the limit.
  rlimit limit{};
  const bool is_limited = sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &limit) == 0;
  const long most_number =
      is_limited ? static_cast<long>(std::min<uint64_t>(limit.rlim_cur / 2, INT_MAX)) : INT_MAX;
  holds_files_ = true;
  for (int fd : fds) {
    CapturedDescriptor d{};
    d.fd = fd;
    d.proc_fd = d.partner = -1;
    d.eventfd_id = -1;
    if (!sample_from_outside(tid, fd, text_, arena, d.now)) continue;  // closed since the list was made
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
    if (!entries_.push_back(d)) return arena_full();
  }
  CKPT_TRY(sort_by_open_file());
  return copy_large_early();
}

int DescriptorCapture::borrow(const CapturedDescriptor& d, int fd) const {
  if (d.in_flight) return static_cast<int>(sys::call(__NR_fcntl, fd, F_DUPFD_CLOEXEC, 0));
  if (!may_borrow_) return -EBADF;
  if (pidfd_ < 0) {
    // A pidfd of a thread needs Linux 6.9; the leader's works everywhere. Few programs have a descriptor that
    // asks for it.
    const bool leader = tid_ == sys::getpid();
    pidfd_ = static_cast<int>(sys::call(__NR_pidfd_open, tid_, leader ? 0 : O_EXCL /* PIDFD_THREAD */));
    if (pidfd_ < 0) return pidfd_;
  }
  return static_cast<int>(sys::call(__NR_pidfd_getfd, pidfd_, fd, 0));
}

Result<void> DescriptorCapture::recheck_stopped(int tid, OtherThreads sharers) {
  if (!sampling_) CKPT_TRY(begin_sampling(tid, sharers));
  standing_ = true;
  CKPT_TRY(look_from_agent());
  await_samples();
  take_order_checks();
  CKPT_TRY(take_samples(sharers));
  CKPT_TRY(find_changes());
  CKPT_TRY(read_volatile());
  if (!structure_changed_ && !kcmp_refused_) {
    auto unchanged = sharing_unchanged();
    if (!unchanged.ok()) return unchanged.error();
    structure_changed_ = !*unchanged;
  }
  if (structure_changed_ || kcmp_refused_) CKPT_TRY(sort_by_open_file());
  SocketLook sockets(*arena_);
  CKPT_TRY(look_at_sockets(sockets));
  if (structure_changed_) CKPT_TRY(sort_by_open_file());
  number_open_files();
  CKPT_TRY(describe_sockets(sockets));
  CKPT_TRY(look_at_terminals_stopped());
  decide_kinds();
  CKPT_TRY(list_owners());
  CKPT_TRY(copy_contents_stopped());
  // Another member may have one as well: the coordinator compares them.
  if (!has_partners_) close_in_flight();
  // hold_back_senders() borrows them once more.
  if (senders_.size() == 0) give_up_pidfd();
  complete_ = true;
  return write_notes();
}

// Threads that are told by a signal what happens to a file.
Result<void> DescriptorCapture::list_owners() {
  file_signals::begin();
  for (const auto& d : entries_) {
    if (d.in_flight || d.now.owner == 0 || d.now.owner_type != F_OWNER_TID ||
        file_signals::add_thread(d.fd, d.now.owner))
      continue;
    return note(kChanged,
                "descriptor {} ({}): the thread {}, which gets signals of it, does not after a restart", d.fd,
                d.path, d.now.owner);
  }
  return {};
}

void DescriptorCapture::SampleJob::run(void* argument) {
  auto& job = *static_cast<SampleJob*>(argument);
  for (;;) {
    // relaxed: whose turn it is; what is sampled is published by the end of OtherThreads::await.
    const size_t from = job.next.fetch_add(kAtOnce, std::memory_order_relaxed);
    if (from >= job.count) return job.check_order();
    for (size_t i = from; i < job.count && i < from + kAtOnce; ++i) {
      const CapturedDescriptor& d = job.entries[i];
      sample_own_descriptor(d.fd, d.asks_partner ? d.partner : -1, job.samples[i]);
    }
  }
}

bool DescriptorCapture::SampleJob::has_much_left() const {
  // relaxed: a hint.
  return next.load(std::memory_order_relaxed) + 2 * kAtOnce < count;
}

Result<void> DescriptorCapture::begin_sampling(int tid, OtherThreads sharers) {
  tid_ = tid;
  may_borrow_ = true;
  // Fresh samples go beside the old ones: both are compared in take_samples().
  const size_t known = entries_.size();
  fresh_ = ArenaVector<DescriptorSample>(*arena_);
  DescriptorSample empty{};
  if (!fresh_.reserve(known + 1)) return arena_full();
  for (size_t i = 0; i < known; ++i) CHECK(fresh_.push_back(empty));
  job_.entries = entries_.data();
  job_.samples = fresh_.data();
  job_.count = known;
  job_.tid = tid;
  CKPT_TRY(list_order_checks());
  job_.checks = checks_.span();
  job_.next.store(0, std::memory_order_relaxed);
  job_.next_check.store(0, std::memory_order_relaxed);
  sampling_ = true;
  sharers_ = sharers;
  if (sharers) {
    sharers.start(sharers.context, &SampleJob::run, &job_);
  } else {
    for (size_t i = 0; i < known; ++i) {
      if (!sample_stopped(entries_[i].fd, fresh_[i])) fresh_[i].error = EBADF;
    }
  }
  return {};
}

void DescriptorCapture::await_samples() {
  if (sampling_ && sharers_) {
    // A second one only now: on our processor it would hold us up.
    if (job_.has_much_left()) sharers_.start(sharers_.context, &SampleJob::run, &job_);
    sharers_.await(sharers_.context);
  }
  sampling_ = false;
}

// While others sample: what does not need their answers.
Result<void> DescriptorCapture::look_from_agent() {
  for (auto& d : entries_) {
    // An epoll comes later: its watches are compared with all descriptors, which must have been sampled.
    if (!d.looked || d.proc_fd < 0 || d.kind == OpenFileKind::kEpoll) continue;
    if (is_volatile(d.kind)) {
      CKPT_TRY(read_counter(d));
    } else if (is_lockable(d.kind)) {
      CKPT_TRY(read_locks(d));
      d.read_again = true;
    }
  }
  job_.check_order();
  return {};
}

Result<void> DescriptorCapture::take_samples(OtherThreads sharers) {
  const size_t known = entries_.size();
  ArenaVector<DescriptorSample>& fresh = fresh_;
  size_t left = 0;
  for (size_t i = 0; i < known; ++i) {
    CapturedDescriptor& d = entries_[i];
    if (fresh[i].error != 0) {  // closed since prepare
      structure_changed_ = true;
      if (d.proc_fd >= 0) sys::call(__NR_close, d.proc_fd);
      continue;
    }
    if (!same_file(d.now, fresh[i])) {
      d.looked = false;
      structure_changed_ = true;
    } else if (d.now.ctime_ns != fresh[i].ctime_ns) {
      // A rename changes it, and so does a write, which sets the other time as well.
      d.path_in_doubt = true;
      if (fresh[i].ctime_ns != fresh[i].mtime_ns) d.named = false;
    }
    d.now = fresh[i];
    d.read_again = d.read_again && d.looked;
    if (left != i) entries_[left] = d;
    ++left;
  }
  entries_.truncate(left);

  long count = count_descriptors(tid_);
  if (count == static_cast<long>(left) + (hidden_ >= 0 ? 1 : 0) && count != 0) return {};
  // Some are new (or this kernel does not count): find them, sample them alone.
  ArenaVector<int> fds(*arena_);
  long r = list_descriptors(tid_, fds);
  if (r == -ENOMEM) return arena_full();
  if (r < 0) {
    return make_error(ExitCode::kSystem, static_cast<int>(r), "cannot list the descriptors of thread {} ({})",
                      tid_, errno_name(static_cast<int>(r)));
  }
  // /proc lists in ascending order, so did prepare: one walk over both.
  size_t at = 0;
  for (int fd : fds) {
    if (fd == hidden_) continue;
    while (at < left && entries_[at].fd < fd) ++at;
    if (at < left && entries_[at].fd == fd) continue;
    CapturedDescriptor d{};
    d.fd = fd;
    d.proc_fd = d.partner = -1;
    d.eventfd_id = -1;
    if (sharers) {
      SampleJob job{&d, &d.now, 1, {}, tid_, {}, {}};
      sharers.run(&SampleJob::run, &job);
      if (d.now.error != 0) continue;
    } else if (!sample_stopped(fd, d.now)) {
      continue;
    }
    structure_changed_ = true;
    if (!entries_.push_back(d)) return arena_full();
  }
  return {};
}

bool DescriptorCapture::sample_stopped(int fd, DescriptorSample& sample) {
  DescriptorSample outside{};
  if (!sample_from_outside(tid_, fd, text_, *arena_, outside)) return false;
  // A duplicate shows what /proc does not (bytes queued, owner, seals). Threads stand still, nobody
  // can miss an end of file because of it.
  int duplicate = borrow(CapturedDescriptor{}, fd);
  if (duplicate < 0) {
    sample = outside;
    return true;
  }
  sample_own_descriptor(duplicate, -1, sample);
  sample.fd_flags = outside.fd_flags;  // ours always has FD_CLOEXEC
  sys::call(__NR_close, duplicate);
  return sample.error == 0;
}

Result<void> DescriptorCapture::find_changes() {
  // After the stop its name may be one that the program gives it only then: a rename to that name would fail.
  uint32_t most = kMostPathsInStop;
  for (auto& d : entries_) {
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
  for (auto& d : entries_) {
    if (d.read_again) continue;
    if (is_volatile(d.kind)) {
      OpenFileKind before = d.kind;
      CKPT_TRY(classify(d));
      if (d.kind != before) structure_changed_ = true;
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
  if (reread_fdinfo(d.proc_fd, text_, *arena_, info) <= 0) return {};
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
  for (auto& d : entries_) {
    if (!d.path_in_doubt || !d.named) continue;
    CapturedDescriptor now = d;
    if (read_path(now).ok() && now.named) d = now;
  }
}

// Files that lost the name by which they were opened just ahead of the stop, or whose other name moved: such
// a file is saved as one without a name, unless a name is found now.
void DescriptorCapture::find_late_names() {
  standing_ = false;
  for (auto& d : entries_) {
    if ((d.flags & kOpenFileDeleted) == 0 || d.now.links == 0 || d.kind == OpenFileKind::kOther) continue;
    if (d.kind == OpenFileKind::kRegular && take_other_name(d, std::string_view(d.path, d.path_len))) {
      d.flags &= ~static_cast<uint32_t>(kOpenFileDeleted);
      const uint64_t object = object_number(d.now.device, d.now.inode);
      for (size_t i = 0; i < contents_.size(); ++i) {
        if (contents_[i].object == object) contents_[i].length = 0;  // serialize() writes none of it
      }
    } else if (!d.shares && has_names_of_others(d)) {
      (void)note(
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
  for (auto& d : entries_) {
    if (!is_lockable(d.kind) || d.proc_fd >= 0 || d.has_locks || d.in_flight) continue;
    FdInfo info;
    if (read_fdinfo(tid_, d.fd, text_, *arena_, info) < 0 || !info.has_locks) continue;
    // The program runs: another file may have the number by now.
    struct stat st;
    if (stat_descriptor(tid_, d.fd, st) < 0 || st.st_ino != d.now.inode || st.st_dev != d.now.device)
      continue;
    (void)note(kChanged,
               "descriptor {} ({}): a lock taken around the moment of the checkpoint is not restored", d.fd,
               d.path);
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
    for (auto& d : entries_) {
      if (d.proc_fd >= 0) sys::call(__NR_close, d.proc_fd);
      d.proc_fd = -1;
    }
    holds_files_ = false;
  }
  close_in_flight();
  close_copy_pipe();
  give_up_pidfd();
}

void DescriptorCapture::give_up_pidfd() {
  if (pidfd_ >= 0) sys::call(__NR_close, pidfd_);
  pidfd_ = -1;
  may_borrow_ = false;
}

}  // namespace ckpt
