#include "restart/descriptors/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>

#include "base/memory/bytes.h"
#include "image/format/records/fanotify_records.h"
#include "restart/descriptors/builder.h"
#include "restart/descriptors/saved_mappings.h"

namespace ckpt {
namespace {

Result<void> place(int made, const DescriptorRecord& d) {
  if (dup3(made, d.fd, (d.fd_flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0) {
    return make_error(ExitCode::kSystem, errno, "descriptor {} cannot be made ({})", d.fd, errno_name(errno));
  }
  return {};
}

}  // namespace

const ParsedOpenFile* removed_working_directory(const ImageMeta& meta) {
  const auto found = std::find_if(meta.open_files.begin(), meta.open_files.end(), [](const auto& file) {
    return (file.record.flags & kOpenFileWorkingDirectory) != 0;
  });
  return found == meta.open_files.end() ? nullptr : &*found;
}

int highest_descriptor(const ImageMeta& meta) {
  int highest = -1;
  for (const auto& d : meta.descriptors) highest = d.fd > highest ? d.fd : highest;
  return highest;
}

std::string describe(const ParsedOpenFile& file, int fd) {
  if (fd < 0) return fmt::format("a descriptor that waits to be received ({})", file.path);
  return fmt::format("descriptor {} ({})", fd, file.path);
}

int DescriptorBuilder::first_descriptor(const ParsedOpenFile& file) const {
  int first = -1;
  for (const auto& d : meta_.descriptors) {
    if (d.open_file == file.record.id && (first < 0 || d.fd < first)) first = d.fd;
  }
  return first;
}

Result<void> check_descriptors(const ImageMeta& meta, const DescriptorOptions& options) {
  DescriptorBuilder builder(meta, options);
  for (const auto& file : meta.open_files) CKPT_TRY(builder.check(file));
  return {};
}

void add_files_put_back(const ImageMeta& meta, const DescriptorOptions& options,
                        std::set<std::string, std::less<>>& names) {
  DescriptorBuilder(meta, options).name_changes(names);
}

namespace {

// What restore_descriptors() does, in parts.
struct Restoring {
  const ImageMeta& meta;
  const DescriptorOptions& options;
  DescriptorBuilder builder;
  RestoredDescriptors result;
  std::set<uint64_t> sealed;

  const InheritedFile* inherited(const ParsedOpenFile& file) const {
    if (options.inherited == nullptr) return nullptr;
    const auto it = options.inherited->find(file.record.id);
    return it == options.inherited->end() ? nullptr : &it->second;
  }
  Result<void> put_back_files();
  std::vector<const ParsedOpenFile*> in_order() const;
  Result<void> make_returning_files() const;
  Result<void> make(const ParsedOpenFile& file);
  Result<void> place_everywhere(const ParsedOpenFile& file, int fd) const;
  Result<void> finish(const ParsedOpenFile& file);
  Result<void> enter_working_directory();
  Result<void> seal(const ParsedOpenFile& file, int fd);
};

Result<void> Restoring::make_returning_files() const {
  if (any_is_filled_now(meta)) {
    // The image's own descriptors were closed with all that had numbers of the program's.
    auto again = ImageChain::open(options.image->path());
    if (!again.ok()) return again.error();
    CKPT_TRY(ckpt::make_returning_files(*again, Filled::kNow, options.say));
  }
  return ckpt::make_returning_files(*options.image, Filled::kByMapping, options.say);
}

// Files as they were, where no other member of a job has done so.
Result<void> Restoring::put_back_files() {
  CKPT_TRY(builder.hold_numbers());
  CKPT_TRY(builder.set_aside_journals());
  CKPT_TRY(builder.put_back_files());
  SavedMappings kept{options.saved_files, {}};
  add_shared_files(meta, kept.shared);
  put_back_mapped_files(meta, kept, options.say);
  if (options.image != nullptr) CKPT_TRY(make_returning_files());
  CKPT_TRY(builder.put_back_changes());
  CKPT_TRY(builder.cut_grown_files());
  builder.make_journals();
  return {};
}

std::vector<const ParsedOpenFile*> Restoring::in_order() const {
  std::vector<const ParsedOpenFile*> files;
  for (const bool of_processes : {false, true}) {
    for (const auto& file : meta.open_files) {
      if (is_of_process(file) == of_processes) files.push_back(&file);
    }
  }
  // A terminal's other ends are opened by its name. What watches files would report that they are opened.
  std::stable_partition(files.begin(), files.end(),
                        [](const auto* file) { return is_terminal_master(*file); });
  std::stable_partition(files.begin(), files.end(),
                        [&](const auto* file) { return !watches_files(builder.kind_of(*file)); });
  return files;
}

Result<void> Restoring::place_everywhere(const ParsedOpenFile& file, int fd) const {
  for (const auto& d : meta.descriptors) {
    if (d.open_file == file.record.id) CKPT_TRY(place(fd, d));
  }
  return {};
}

// Open files are made at the lowest free number, which in a job may be one that is still to be filled: each
// is moved up out of the way before it is put at its own numbers.
Result<void> Restoring::make(const ParsedOpenFile& file) {
  if (const InheritedFile* known = inherited(file); known != nullptr)
    return place_everywhere(file, known->fd);
  if (builder.is_restarters(file)) {
    for (const auto& d : meta.descriptors) {
      if (d.open_file != file.record.id) continue;
      auto stream = builder.restarters_stream(file, d.fd);
      if (!stream) return stream.error();
      auto up = options.working->park(std::move(*stream), "a terminal");
      if (!up) return up.error();
      CKPT_TRY(place(ScopedFd(*up).get(), d));
    }
    return {};
  }
  // An open file that waits in a socket, and has no number of its own, is made when it is sent.
  if (builder.first_descriptor(file) < 0) return {};
  auto made = builder.make(file);
  if (!made) return made.error();
  auto up = options.working->park(std::move(*made), "an open file");
  if (!up) return up.error();
  const ScopedFd parked(*up);
  return place_everywhere(file, parked.get());
}

// One that had been removed: no name leads to it.
Result<void> Restoring::enter_working_directory() {
  const ParsedOpenFile* file = removed_working_directory(meta);
  if (file == nullptr) return {};
  if (const InheritedFile* known = inherited(*file); known != nullptr)
    return builder.enter_directory(*file, known->fd);
  auto made = builder.make(*file);
  if (!made) return made.error();
  return builder.enter_directory(*file, made->get());
}

// What can be done only when all open files are there.
Result<void> Restoring::finish(const ParsedOpenFile& file) {
  int fd = -1;
  for (const auto& d : meta.descriptors) {
    if (d.open_file == file.record.id) fd = d.fd;
  }
  // An open file that waits in a socket has no number.
  const bool is_sent = fd < 0;
  if (is_sent) {
    const InheritedFile* sent = inherited(file);
    fd = sent != nullptr ? (sent->first ? sent->fd : -1) : builder.sent_descriptor(file);
  }
  if (fd < 0) return {};
  builder.set_owner(file, fd);
  if (const InheritedFile* known = inherited(file); known != nullptr && !known->first) return {};
  if (builder.kind_of(file) == OpenFileKind::kEpoll) CKPT_TRY(builder.add_watches(file, fd));
  if (builder.kind_of(file) == OpenFileKind::kTimerFd && !is_sent) builder.add_timers(file, fd, result);
  // Before DescriptorBuilder::finish() closes it; others have theirs last.
  if (is_sent) builder.add_locks(file, fd, result);
  return builder.kind_of(file) == OpenFileKind::kMemfd ? seal(file, fd) : Result<void>();
}

// Through our own descriptor: the program's may be open only for reading.
Result<void> Restoring::seal(const ParsedOpenFile& file, int fd) {
  if (file.record.seals == 0 || !sealed.insert(file.record.object).second) return {};
  const int object = options.working->find_object(file.record.object);
  if (options.mapped_objects.count(file.record.object) != 0) {
    result.pending_seals.push_back({object, file.record.object, file.record.seals});
  } else if (fcntl(object, F_ADD_SEALS, file.record.seals) != 0) {
    return make_error(ExitCode::kSystem, errno, "{} cannot be sealed again ({})", describe(file, fd),
                      errno_name(errno));
  }
  return {};
}

}  // namespace

Result<RestoredDescriptors> restore_descriptors(const ImageMeta& meta, const DescriptorOptions& options) {
  if (highest_descriptor(meta) >= options.working->first()) {
    return make_error(ExitCode::kInternal, 0,
                      "descriptor {} of the image is among the working descriptors (from {})",
                      highest_descriptor(meta), options.working->first());
  }
  Restoring restoring{meta, options, DescriptorBuilder(meta, options), {}, {}};
  DescriptorBuilder& builder = restoring.builder;
  // A file that other members have as well has been opened for all of them; opened once more it would break a
  // lease that one of them has taken by now.
  for (const auto& file : meta.open_files) {
    if (restoring.inherited(file) == nullptr) CKPT_TRY(builder.check(file));
  }
  CKPT_TRY(builder.take_standard_streams());
  if (options.inherited == nullptr) CKPT_TRY(restoring.put_back_files());
  CKPT_TRY(builder.connect_sockets());
  for (const ParsedOpenFile* file : restoring.in_order()) CKPT_TRY(restoring.make(*file));
  CKPT_TRY(builder.fill_sockets());
  CKPT_TRY(restoring.enter_working_directory());
  for (const auto& file : meta.open_files) CKPT_TRY(restoring.finish(file));
  builder.finish();
  // Last: closing any descriptor of a file drops the process's locks on it.
  for (const auto& file : meta.open_files) {
    for (const auto& d : meta.descriptors) {
      if (d.open_file == file.record.id) {
        builder.add_locks(file, d.fd, restoring.result);
        break;
      }
    }
  }
  return std::move(restoring.result);
}

namespace {

// In the new process. Of several that have it, the first one does what is to be done once.
template <typename Fn>
void for_each_own_watcher(const ImageMeta& meta, const DescriptorOptions& options, Fn fn) {
  const DescriptorBuilder builder(meta, options);
  for (const auto& file : meta.open_files) {
    const int fd = builder.first_descriptor(file);
    if (!watches_files(builder.kind_of(file)) || fd < 0) continue;
    if (options.inherited != nullptr) {
      const auto known = options.inherited->find(file.record.id);
      if (known != options.inherited->end() && !known->second.first) continue;
    }
    fn(builder, file, fd);
  }
}

}  // namespace

bool has_file_watches(const ImageMeta& meta, const DescriptorOptions& options) {
  bool any = false;
  for_each_own_watcher(meta, options,
                       [&](const DescriptorBuilder&, const ParsedOpenFile&, int) { any = true; });
  return any;
}

void restore_file_watches(const ImageMeta& meta, const DescriptorOptions& options) {
  for_each_own_watcher(meta, options,
                       [](const DescriptorBuilder& builder, const ParsedOpenFile& file, int fd) {
                         builder.add_file_watches(file, fd);
                       });
}

Result<void> DescriptorBuilder::take_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    int up = fcntl(fd, F_DUPFD_CLOEXEC, options_.working->first());
    if (up < 0 && errno != EBADF) {
      return make_error(ExitCode::kUnavailable, errno,
                        "no descriptor left for the standard streams ({}): raise ulimit -n",
                        errno_name(errno));
    }
    standard_[fd] = up;
  }
  sys::call(__NR_close_range, 0, static_cast<unsigned>(options_.working->first() - 1), 0);
  return {};
}

Result<void> DescriptorBuilder::hold_numbers() {
  std::vector<int> numbers;
  std::map<uint32_t, int> homes;
  for (const auto& d : meta_.descriptors) {
    numbers.push_back(d.fd);
    const auto [home, is_first] = homes.emplace(d.open_file, d.fd);
    if (!is_first && d.fd < home->second) home->second = d.fd;
  }
  return options_.working->hold_numbers(numbers, std::move(homes));
}

OpenFileKind DescriptorBuilder::kind_of(const ParsedOpenFile& file) const {
  const auto kind = static_cast<OpenFileKind>(file.record.kind);
  const bool may_be_lone =
      kind == OpenFileKind::kPipe || kind == OpenFileKind::kSocketPair || kind == OpenFileKind::kConnection;
  if (!may_be_lone || options_.lone_pipes == nullptr) return kind;
  const auto it = options_.lone_pipes->find(file.record.object);
  if (it == options_.lone_pipes->end()) return kind;
  return it->second >= 0 ? OpenFileKind::kStandard : OpenFileKind::kOther;
}

bool DescriptorBuilder::is_restarters(const ParsedOpenFile& file) const {
  return (kind_of(file) == OpenFileKind::kTerminal && !is_of_own_terminal(file)) ||
         kind_of(file) == OpenFileKind::kStandard;
}

Result<ScopedFd> DescriptorBuilder::make(const ParsedOpenFile& file) {
  const bool deleted = (file.record.flags & kOpenFileDeleted) != 0;
  if (is_of_process(file)) return open_of_process(file);
  if (is_terminal_master(file)) return make_master(file);
  spare_masters_.clear();
  if (kind_of(file) == OpenFileKind::kTerminal) return open_own_terminal(file);
  if (kind_of(file) == kFanotify) return make_fanotify(file);
  switch (kind_of(file)) {
    case OpenFileKind::kRegular:
      if (deleted && S_ISLNK(file.record.mode)) return make_deleted_link(file);
      return deleted ? make_deleted_file(file) : open_by_path(file);
    case OpenFileKind::kDirectory:
      return deleted ? make_deleted_directory(file) : open_by_path(file);
    case OpenFileKind::kDevice:
      return open_by_path(file);
    case OpenFileKind::kPipe:
      return make_pipe(file);
    case OpenFileKind::kFifo:
      return make_fifo(file);
    case OpenFileKind::kMemfd:
      return make_memfd(file);
    case OpenFileKind::kEventFd:
      return make_eventfd(file);
    case OpenFileKind::kTimerFd:
      return make_timerfd(file);
    case OpenFileKind::kSignalFd:
      return make_signalfd(file);
    case OpenFileKind::kEpoll:
      return make_epoll(file);
    case OpenFileKind::kMessageQueue:
      return open_message_queue(file);
    case OpenFileKind::kPidFd:
      return make_pidfd(file);
    case OpenFileKind::kInotify:
      return make_inotify(file);
    case OpenFileKind::kSocketPair:
    case OpenFileKind::kSocket:
    case OpenFileKind::kConnection:
      if (int fd = channels_.find(0, file.record.id); fd >= 0) return ScopedFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
      return make_placeholder(file);
    default:
      return make_placeholder(file);
  }
}

Result<void> DescriptorBuilder::connect_sockets() {
  if (options_.inherited != nullptr) return {};  // made for all of the job
  channels_.add(0, meta_);
  return channels_.connect();
}

Result<void> DescriptorBuilder::connect_sockets_but(const std::map<uint64_t, int>& others) {
  channels_.add(0, meta_, others);
  return channels_.connect();
}

// A message that waits in a socket may carry a descriptor, also of a file that has no number of its own.
Result<void> DescriptorBuilder::fill_sockets() {
  return channels_.fill([this](int, uint32_t id) -> Result<int> {
    if (int socket = channels_.find(0, id); socket >= 0) return socket;
    const ParsedOpenFile* file = meta_.open_file(id);
    if (file == nullptr) return -1;
    if (int fd = first_descriptor(*file); fd >= 0) return fd;
    auto known = in_flight_.find(id);
    if (known != in_flight_.end()) return known->second;
    auto made = make(*file);
    if (!made.ok()) return made.error();
    auto up = options_.working->park(std::move(*made), "an open file");
    if (!up.ok()) return up;
    in_flight_[id] = *up;
    return *up;
  });
}

int DescriptorBuilder::sent_descriptor(const ParsedOpenFile& file) const {
  const auto known = in_flight_.find(file.record.id);
  return known == in_flight_.end() ? -1 : known->second;
}

void DescriptorBuilder::set_owner(const ParsedOpenFile& file, int fd) {
  if (is_restarters(file) || kind_of(file) == OpenFileKind::kOther) return;
  const auto& r = file.record;
  if (r.owner_signal != 0) fcntl(fd, F_SETSIG, r.owner_signal);
  // A thread of the program's own does not exist yet: the library makes it the owner
  // (capture/descriptors/noted/file_signals.h).
  const bool is_own_thread = r.owner_type == F_OWNER_TID &&
                             std::any_of(meta_.threads.begin(), meta_.threads.end(),
                                         [&](const ParsedThread& t) { return t.record.tid == r.owner; });
  if (r.owner != 0 && !is_own_thread) {
    f_owner_ex owner{static_cast<decltype(f_owner_ex::type)>(r.owner_type), r.owner};
    if (fcntl(fd, F_SETOWN_EX, &owner) != 0) {
      // A thread that has ended, or another process: the program itself hears of it instead.
      owner = {F_OWNER_PID, getpid()};
      fcntl(fd, F_SETOWN_EX, &owner);
      say("{}: signals went to process or thread {}, now to the program ({})", describe(file, fd), r.owner,
          errno_name(errno));
    }
  }
  if ((r.open_flags & O_ASYNC) != 0) fcntl(fd, F_SETFL, static_cast<int>(r.open_flags));
}

void DescriptorBuilder::add_locks(const ParsedOpenFile& file, int fd, RestoredDescriptors& result) {
  for_each_detail<LockDetail>(file, OpenFileDetail::kLock, [&](const LockDetail& lock, Blob) {
    int r = 0;
    struct flock range = {};
    range.l_type = lock.write != 0 ? F_WRLCK : F_RDLCK;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<off_t>(lock.start);
    range.l_len = static_cast<off_t>(lock.length);
    switch (static_cast<FileLockKind>(lock.kind)) {
      case FileLockKind::kFlock:
        r = flock(fd, (lock.write != 0 ? LOCK_EX : LOCK_SH) | LOCK_NB);
        break;
      case FileLockKind::kPosix:
        r = fcntl(fd, F_SETLK, &range);
        result.locks.push_back({fd, range.l_type, range.l_start, range.l_len, r == 0});
        break;
      case FileLockKind::kOpenFileLock:
        r = fcntl(fd, F_OFD_SETLK, &range);
        break;
      case FileLockKind::kLease:
        r = fcntl(fd, F_SETLEASE, static_cast<int>(range.l_type));
        break;
    }
    if (r != 0) {
      say("{}: the lock that the program held cannot be taken again ({}); another process holds it",
          describe(file, fd), errno_name(errno));
    }
  });
}

void DescriptorBuilder::finish() {
  for (int& fd : standard_) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  auto end = [this](int fd) {
    if (fd >= 0 && options_.working->is_working(fd)) close(fd);
  };
  for (auto& [object, ends] : pipes_) {
    end(ends.read);
    end(ends.write);
  }
  pipes_.clear();
  for (auto& [object, fd] : fifo_holders_) close(fd);
  fifo_holders_.clear();
  for (auto& [object, readers] : unwritten_)
    for (auto& [id, fd] : readers) close(fd);
  unwritten_.clear();
  channels_.finish();
  for (auto& [id, fd] : in_flight_) close(fd);
  in_flight_.clear();
}

}  // namespace ckpt
