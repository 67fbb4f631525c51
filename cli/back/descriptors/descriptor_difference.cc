#include "cli/back/descriptors/descriptor_difference.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/memory/bytes.h"
#include "cli/text/failure.h"
#include "image/format/records/fanotify_records.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

using Op = DescriptorDifference::Op;

class DescriptorComparison {
 public:
  DescriptorComparison(const ImageMeta& then, const ImageMeta& now, pid_t pid,
                       const DescriptorOptions& options, const SharedParts& shared, ReplacedFiles replaced)
      : then_(then),
        now_(now),
        pid_(pid),
        options_(options),
        with_others_(shared.files),
        in_job_(shared.of_job),
        replaced_(std::move(replaced)),
        still_open_(then, now, shared.files, options.image_directory, replaced_),
        builder_(then, options) {}

  Result<DescriptorDifference> run() {
    for (const auto& d : now_.descriptors) now_at_[d.fd] = &d;
    for (const auto& d : then_.descriptors) then_at_[d.fd] = &d;
    for (const auto* meta : {&then_, &now_})
      result_.first_free = std::max(result_.first_free, highest_descriptor(*meta) + 1);
    CKPT_TRY(make_missing());
    close_others();
    place_all();
    for (const auto& f : then_.open_files) CKPT_TRY(bring_state_back(f));
    for (const auto& f : then_.open_files) CKPT_TRY(watch_again(f));
    locks();
    directory();
    for (const auto& [id, still_open] : still_open_.all())
      result_.still_open.emplace(
          id, DescriptorDifference::StillOpen{still_open.now, still_open.fd, first_descriptor(then_, id)});
    return std::move(result_);
  }

 private:
  Op& add(BackDescriptor kind, int fd, int64_t a = 0, int64_t b = 0) {
    result_.ops.push_back({{static_cast<uint32_t>(kind), fd, a, b, 0, 0}, {}});
    return result_.ops.back();
  }
  template <typename T>
  void add_with(BackDescriptor kind, int fd, int64_t a, int64_t b, const T& data) {
    auto bytes = std::as_bytes(std::span(&data, 1));
    add(kind, fd, a, b).data.assign(bytes.begin(), bytes.end());
  }

  static bool is_socket(const ParsedOpenFile& f) {
    return kind_of(f) == OpenFileKind::kSocketPair || kind_of(f) == OpenFileKind::kSocket ||
           kind_of(f) == OpenFileKind::kConnection;
  }

  // Pairs, and sockets without an address. An address may be somebody else's by now, or kept by the kernel
  // for a while. A descriptor that waits in a socket is of an open file that the program may still have.
  static bool can_be_made_again(const ParsedOpenFile& f) {
    bool named = kind_of(f) == OpenFileKind::kConnection, has_descriptors = false;
    for_each_detail<SocketDetail>(f, OpenFileDetail::kSocket, [&](const SocketDetail& s, Blob) {
      named = named || s.address_len != 0 || s.peer_len != 0 || s.backlog >= 0;
    });
    for_each_detail<SocketMessageDetail>(
        f, OpenFileDetail::kSocketMessage,
        [&](const SocketMessageDetail& m, Blob) { has_descriptors = has_descriptors || m.file_count != 0; });
    return !named && !has_descriptors;
  }

  Result<void> connect_missing() {
    std::map<uint64_t, int> others;
    bool any = false;
    for (const auto& f : then_.open_files) {
      if (!is_socket(f)) continue;
      const bool missing = still_open_.find(f.record.id) == nullptr && with_others_.count(f.record.id) == 0 &&
                           first_descriptor(then_, f.record.id) >= 0 && !still_open_.leads_outside(f);
      any = any || (missing && can_be_made_again(f));
      if (!missing || !can_be_made_again(f)) others.emplace(f.record.object, -1);
    }
    return any ? builder_.connect_sockets_but(others) : Result<void>();
  }

  Result<void> make_missing() {
    CKPT_TRY(connect_missing());
    CKPT_TRY(make_missing(false));
    CKPT_TRY(make_directory());
    CKPT_TRY(builder_.fill_sockets());
    CKPT_TRY(make_missing(true));
    builder_.finish();
    return {};
  }

  // What watches files comes last: it would be told which ones we open.
  Result<void> make_missing(bool watchers) {
    for (const auto& f : then_.open_files) {
      if (watches_files(kind_of(f)) != watchers) continue;
      const int fd = first_descriptor(then_, f.record.id);
      if (fd < 0 || still_open_.find(f.record.id) != nullptr) continue;
      if (const auto replaced = replaced_.find(f.record.id); replaced != replaced_.end()) {
        builder_.set_owner(f, replaced->second.get());
        made_[f.record.id] = static_cast<int64_t>(result_.made.size());
        result_.made.push_back(std::move(replaced->second));
        continue;
      }
      const OpenFileKind kind = kind_of(f);
      if (with_others_.count(f.record.id) != 0) {
        return failure(ExitCode::kUnsupported, describe(f, fd),
                       watches_files(kind)
                           ? "watches files for another process of the job as well"
                           : "was closed since, and another process of the job has a part in it",
                       "nothing was changed; restart the job with ckpt-restart");
      }
      const bool outside = still_open_.leads_outside(f);
      if (kind == OpenFileKind::kTerminal || kind == OpenFileKind::kStandard ||
          kind == OpenFileKind::kOther || outside) {
        result_.cannot.push_back(fmt::format(
            "{} has been closed since, and leads where nobody can open it again", describe(f, fd)));
        if (kind != OpenFileKind::kOther && !outside) continue;
      }
      if ((kind == OpenFileKind::kMemfd || (f.record.flags & kOpenFileDeleted) != 0) &&
          options_.mapped_objects.count(f.record.object) != 0) {
        if (ScopedFd again = open_mapped(f); again.valid()) {
          made_[f.record.id] = static_cast<int64_t>(result_.made.size());
          result_.made.push_back(std::move(again));
          continue;
        }
        result_.cannot.push_back(
            fmt::format("{} has been closed since; what is opened again is not the memory that is mapped",
                        describe(f, fd)));
      }
      if (is_socket(f) && !outside && !can_be_made_again(f))
        result_.cannot.push_back(fmt::format(
            "{} has been closed since, and has an address or descriptors waiting in it", describe(f, fd)));
      CKPT_TRY(builder_.check(f));
      auto made = builder_.make(f);
      if (!made) return made.error();
      made_[f.record.id] = static_cast<int64_t>(result_.made.size());
      result_.made.push_back(std::move(*made));
    }
    return {};
  }

  // The working directory, if it had been removed and is another one now.
  Result<void> make_directory() {
    const ParsedOpenFile* then = removed_working_directory(then_);
    const ParsedOpenFile* now = removed_working_directory(now_);
    if (then == nullptr || (now != nullptr && now->record.object == then->record.object)) return {};
    auto made = builder_.make(*then);
    if (!made) return made.error();
    entered_ = static_cast<int64_t>(result_.made.size());
    result_.made.push_back(std::move(*made));
    return {};
  }

  // Opens a file without a name that the program still has mapped. That takes CAP_CHECKPOINT_RESTORE.
  ScopedFd open_mapped(const ParsedOpenFile& f) const {
    for (const auto& m : now_.mappings) {
      if (m.record.object != f.record.object) continue;
      const auto path = fmt::format("/proc/{}/map_files/{:x}-{:x}", pid_, m.record.start, m.record.end);
      ScopedFd fd(open(path.c_str(), reopen_flags(f.record) & ~O_NOFOLLOW));
      struct stat st;
      if (!fd.valid() || fstat(fd.get(), &st) != 0 || st.st_dev != f.record.device ||
          st.st_ino != f.record.inode)
        continue;
      if (has_position(f) && lseek(fd.get(), static_cast<off_t>(f.record.offset), SEEK_SET) < 0) continue;
      return fd;
    }
    return {};
  }

  void close_others() {
    for (const auto& [fd, d] : now_at_) {
      if (then_at_.count(fd) == 0) add(BackDescriptor::kClose, fd);
    }
  }

  // A file that is still open, but at none of its numbers of then, moves to a spare number first: its number
  // of now may be needed for another file.
  void place_all() {
    int spare = result_.first_free;
    std::map<uint32_t, int> source;
    std::vector<int> spares;
    for (const auto& [id, still_open] : still_open_.all()) {
      bool stays = false;
      for (const auto& d : then_.descriptors) stays = stays || (d.open_file == id && d.fd == still_open.fd);
      source[id] = still_open.fd;
      if (stays) continue;
      add(BackDescriptor::kDup, spare, still_open.fd, FD_CLOEXEC);
      source[id] = spare;
      spares.push_back(spare++);
    }
    for (const auto& d : then_.descriptors) {
      const auto made = made_.find(d.open_file);
      const auto from = source.find(d.open_file);
      const int64_t close_on_exec = d.fd_flags & FD_CLOEXEC;
      if (made != made_.end()) {
        add(BackDescriptor::kPlace, d.fd, made->second, close_on_exec);
      } else if (from != source.end()) {
        const auto now = now_at_.find(d.fd);
        if (now != now_at_.end() && now->second->open_file == still_open_.find(d.open_file)->now->record.id) {
          if (now->second->fd_flags != d.fd_flags) add(BackDescriptor::kFlags, d.fd, close_on_exec);
        } else {
          add(BackDescriptor::kDup, d.fd, from->second, close_on_exec);
        }
      }
    }
    for (int fd : spares) add(BackDescriptor::kClose, fd);
    // Descriptors that the program receives from us get numbers above the spare ones.
    result_.first_free = spare;
  }

  Result<void> bring_state_back(const ParsedOpenFile& f) {
    const int fd = first_descriptor(then_, f.record.id);
    const auto* found = still_open_.find(f.record.id);
    if (fd < 0 || found == nullptr) return {};
    const ParsedOpenFile& is = *found->now;
    if (f.record.open_flags != is.record.open_flags)
      add(BackDescriptor::kStatus, fd, static_cast<int64_t>(f.record.open_flags));
    if (has_position(f) && f.record.offset != is.record.offset)
      add(BackDescriptor::kSeek, fd, static_cast<int64_t>(f.record.offset));
    compare_file_locks(f, is, fd);
    switch (with_others_.count(f.record.id) != 0 ? of_one_kind(kind_of(f)) : kind_of(f)) {
      case OpenFileKind::kEventFd:
        if (f.record.value != is.record.value)
          add(BackDescriptor::kEvent, fd, static_cast<int64_t>(f.record.value));
        break;
      case OpenFileKind::kSignalFd:
        if (f.record.value != is.record.value)
          add(BackDescriptor::kSignals, fd, static_cast<int64_t>(f.record.value));
        break;
      case OpenFileKind::kTimerFd:
        for_each_detail<TimerDetail>(f, OpenFileDetail::kTimer,
                                     [&](const TimerDetail& t, Blob) { set_timer(fd, t); });
        break;
      case OpenFileKind::kPipe:
        refill(f, is, fd);
        break;
      case OpenFileKind::kConnection:
      case OpenFileKind::kSocket:
        if (!in_job_ && !still_open_.leads_outside(f)) compare_waiting(f, is, fd);
        break;
      case OpenFileKind::kMessageQueue:
        if (!still_open_.same_content(f))
          result_.cannot.push_back(fmt::format("other messages wait in {} now", describe(f, fd)));
        break;
      case OpenFileKind::kMemfd:
      case OpenFileKind::kRegular:
        if (kind_of(f) != OpenFileKind::kMemfd && (f.record.flags & kOpenFileDeleted) == 0) break;
        // A member that has it only mapped would put its memory back before this one has made it longer.
        if (in_job_ && f.record.size > is.record.size &&
            (kind_of(f) == OpenFileKind::kMemfd || options_.mapped_objects.count(f.record.object) != 0)) {
          return failure(ExitCode::kUnsupported, describe(f, fd),
                         "was made shorter since, and processes of the job may have it mapped",
                         "nothing was changed; restart the job with ckpt-restart");
        }
        rewrite(f, is, fd);
        break;
      default:
        break;
    }
    return {};
  }

  // The state of an open file that other members share is set by each of them, if setting it twice does no
  // harm. For the kinds here it does: plan_channels() has one member set them.
  static OpenFileKind of_one_kind(OpenFileKind kind) {
    return kind == OpenFileKind::kPipe || kind == OpenFileKind::kSocketPair ||
                   kind == OpenFileKind::kSocket || kind == OpenFileKind::kConnection ||
                   kind == OpenFileKind::kEventFd
               ? OpenFileKind::kOther
               : kind;
  }

  // Messages that have come since the checkpoint would be received by a program that is before it.
  void compare_waiting(const ParsedOpenFile& f, const ParsedOpenFile& is, int fd) {
    switch (still_open_.what_waits(f, is)) {
      case StillOpenFiles::Waits::kTheSame:
        return;
      case StillOpenFiles::Waits::kMore:
        return result_.cannot.push_back(
            fmt::format("more waits in {} than at the checkpoint", describe(f, fd)));
      case StillOpenFiles::Waits::kOther:
        return result_.cannot.push_back(
            fmt::format("what waited in {} has been received since", describe(f, fd)));
    }
  }

  // Locks of the open file: no one can tell which other process has taken such a lock since.
  void compare_file_locks(const ParsedOpenFile& f, const ParsedOpenFile& is, int fd) {
    auto list = [](const ParsedOpenFile& file) {
      std::vector<std::tuple<uint32_t, uint32_t, uint64_t, uint64_t>> locks;
      for_each_detail<LockDetail>(file, OpenFileDetail::kLock, [&](const LockDetail& lock, Blob) {
        if (static_cast<FileLockKind>(lock.kind) != FileLockKind::kPosix)
          locks.emplace_back(lock.kind, lock.write, lock.start, lock.length);
      });
      std::sort(locks.begin(), locks.end());
      return locks;
    };
    if (list(f) != list(is))
      result_.cannot.push_back(fmt::format("{} was locked or unlocked since", describe(f, fd)));
  }

  // A relative timer gets the time that it had left; an absolute one the moment at which it was to expire.
  void set_timer(int fd, const TimerDetail& t) {
    itimerspec when{};
    int64_t value = t.remaining_ns;
    const bool absolute = (t.flags & TFD_TIMER_ABSTIME) != 0;
    if (absolute && value != 0) value += t.clock_ns;
    when.it_value = {value / 1'000'000'000, value % 1'000'000'000};
    when.it_interval = {t.interval_ns / 1'000'000'000, t.interval_ns % 1'000'000'000};
    const auto flags = static_cast<int64_t>(t.flags & (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET));
    add_with(BackDescriptor::kTimer, fd, flags, static_cast<int64_t>(t.ticks), when);
  }

  // The records have the bytes in a pipe at one of its ends only.
  void refill(const ParsedOpenFile& f, const ParsedOpenFile& is, int fd) {
    if ((f.record.flags & kOpenFilePipeWriteEnd) == 0 || (f.record.open_flags & O_ACCMODE) == O_RDONLY) {
      // Its writer had ended. (No image has the bytes of a writer outside of the job.)
      const auto was = content_of(then_, f.record.id);
      const bool has_writer = std::ranges::any_of(then_.open_files, [&f](const ParsedOpenFile& end) {
        return end.record.object == f.record.object && (end.record.flags & kOpenFilePipeWriteEnd) != 0;
      });
      if (!in_job_ && !has_writer && !was.empty() && was != content_of(now_, is.record.id))
        result_.cannot.push_back(fmt::format("what waited in {} has been received since", describe(f, fd)));
      return;
    }
    std::vector<std::byte> was, held;
    int reader = -1;
    for (const auto& end : then_.open_files) {
      if (end.record.object != f.record.object || kind_of(end) != OpenFileKind::kPipe) continue;
      const auto bytes = content_of(then_, end.record.id);
      was.insert(was.end(), bytes.begin(), bytes.end());
      if ((end.record.flags & kOpenFilePipeReadEnd) != 0) reader = first_descriptor(then_, end.record.id);
    }
    for (const auto& end : now_.open_files) {
      if (end.record.object != is.record.object || kind_of(end) != OpenFileKind::kPipe) continue;
      const auto bytes = content_of(now_, end.record.id);
      held.insert(held.end(), bytes.begin(), bytes.end());
    }
    if (reader < 0 || (was == held && f.record.pipe_size == is.record.pipe_size)) return;
    if (!in_job_ && was != held && (f.record.open_flags & O_DIRECT) != 0)
      result_.cannot.push_back(
          fmt::format("packets that waited in {} have been received since", describe(f, fd)));
    add(BackDescriptor::kPipe, fd, reader, f.record.pipe_size).data = was;
  }

  void rewrite(const ParsedOpenFile& f, const ParsedOpenFile& is, int fd) {
    if (f.record.size == is.record.size && still_open_.same_content(f)) return;
    if ((f.record.open_flags & O_ACCMODE) == O_RDONLY) {
      if (f.record.size != is.record.size || !still_open_.same_content(f))
        result_.cannot.push_back(
            fmt::format("{} has changed since and is open only for reading", describe(f, fd)));
      return;
    }
    if (f.record.size != is.record.size) {
      const auto* found = still_open_.find(f.record.id);
      add(BackDescriptor::kSize, fd, static_cast<int64_t>(f.record.size), found != nullptr ? found->fd : -1);
    }
    for (const auto& c : then_.contents) {
      if (c.record.open_file != f.record.id) continue;
      add(BackDescriptor::kContent, fd, static_cast<int64_t>(c.record.offset))
          .data.assign(c.bytes.begin(), c.bytes.end());
    }
  }

  // Closing a file takes it from every epoll. So this comes last, when all descriptors are in place.
  Result<void> watch_again(const ParsedOpenFile& f) {
    const int fd = first_descriptor(then_, f.record.id);
    if (kind_of(f) != OpenFileKind::kEpoll || fd < 0) return {};
    const auto* found = still_open_.find(f.record.id);
    const bool remade = found == nullptr;
    std::map<int, EpollWatchDetail> was, is;
    for_each_detail<EpollWatchDetail>(f, OpenFileDetail::kEpollWatch,
                                      [&](const EpollWatchDetail& w, Blob) { was[w.fd] = w; });
    if (!remade) {
      for_each_detail<EpollWatchDetail>(*found->now, OpenFileDetail::kEpollWatch,
                                        [&](const EpollWatchDetail& w, Blob) { is[w.fd] = w; });
    }
    const size_t before = result_.ops.size();
    for (const auto& [watched, w] : is) {
      if (was.count(watched) == 0) add_watch(EPOLL_CTL_DEL, fd, w);
    }
    for (const auto& [watched, w] : was) {
      const auto now = is.find(watched);
      const auto d = then_at_.find(watched);
      const bool same = d != then_at_.end() && still_open_.find(d->second->open_file) != nullptr;
      if (now == is.end() || !same)
        add_watch(EPOLL_CTL_ADD, fd, w);
      else if (now->second.events != w.events || now->second.data != w.data)
        add_watch(EPOLL_CTL_MOD, fd, w);
    }
    if (result_.ops.size() == before || with_others_.count(f.record.id) == 0) return {};
    return failure(ExitCode::kUnsupported, describe(f, fd),
                   "watches other descriptors than at the checkpoint, for several processes of the job",
                   "nothing was changed; restart the job with ckpt-restart");
  }

  void add_watch(int what, int fd, const EpollWatchDetail& w) {
    epoll_event event{};
    event.events = w.events;
    event.data.u64 = w.data;
    add_with(BackDescriptor::kEpoll, fd, what, w.fd, event);
  }

  // A process loses its POSIX locks of a file when it closes any descriptor of it: so all are taken again.
  // Locks that the process has taken since are given up first. Of a job everybody does that, before anybody
  // takes one.
  void locks() {
    auto range_of = [](const LockDetail& lock, short type) {
      struct flock range {};
      range.l_type = type;
      range.l_whence = SEEK_SET;
      range.l_start = static_cast<off_t>(lock.start);
      range.l_len = static_cast<off_t>(lock.length);
      return range;
    };
    for (const auto& [id, still_open] : still_open_.all()) {
      const int fd = first_descriptor(then_, id);
      for_each_detail<LockDetail>(*still_open.now, OpenFileDetail::kLock, [&](const LockDetail& lock, Blob) {
        if (static_cast<FileLockKind>(lock.kind) == FileLockKind::kPosix)
          add_with(BackDescriptor::kLock, fd, 0, 0, range_of(lock, F_UNLCK));
      });
    }
    for (const auto& f : then_.open_files) {
      const int fd = first_descriptor(then_, f.record.id);
      if (fd < 0) continue;
      for_each_detail<LockDetail>(f, OpenFileDetail::kLock, [&](const LockDetail& lock, Blob) {
        if (static_cast<FileLockKind>(lock.kind) != FileLockKind::kPosix) return;
        add_with(BackDescriptor::kLock, fd, 0, 0, range_of(lock, lock.write != 0 ? F_WRLCK : F_RDLCK));
        result_.ops.back().op.part = in_job_ ? 1 : 0;
      });
    }
  }

  void directory() {
    if (entered_ >= 0) {
      add(BackDescriptor::kEnter, -1, entered_);
    } else if (then_.process.cwd != now_.process.cwd && removed_working_directory(then_) == nullptr) {
      Op& op = add(BackDescriptor::kDirectory, -1);
      const auto text = std::as_bytes(std::span(then_.process.cwd.data(), then_.process.cwd.size()));
      op.data.assign(text.begin(), text.end());
      op.data.push_back(std::byte{0});
    }
    if (then_.process.record.umask != now_.process.record.umask)
      add(BackDescriptor::kUmask, -1, then_.process.record.umask);
  }

  const ImageMeta &then_, &now_;
  const pid_t pid_;
  const DescriptorOptions& options_;
  const std::set<uint32_t>& with_others_;
  const bool in_job_;
  ReplacedFiles replaced_;
  StillOpenFiles still_open_;
  DescriptorBuilder builder_;
  DescriptorDifference result_;
  std::map<int, const DescriptorRecord*> then_at_, now_at_;
  int64_t entered_ = -1;              // which of result_.made is the working directory; -1: none
  std::map<uint32_t, int64_t> made_;  // by the image's id: which of result_.made
};

}  // namespace

Result<DescriptorDifference> compare_descriptors(const ImageMeta& then, const ImageMeta& now, pid_t pid,
                                                 const DescriptorOptions& options, const SharedParts& shared,
                                                 ReplacedFiles replaced) {
  return DescriptorComparison(then, now, pid, options, shared, std::move(replaced)).run();
}

}  // namespace ckpt::cli
