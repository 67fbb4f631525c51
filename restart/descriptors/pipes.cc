#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/memory/bytes.h"
#include "restart/descriptors/builder.h"

// Pipes with their bytes, FIFOs, and the streams that come from the restarter.

namespace ckpt {
namespace {

// The flags that fcntl(F_SETFL) changes; O_ASYNC waits until the owner is known.
constexpr int kSettable = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;

int access_mode(const ParsedOpenFile& file) { return static_cast<int>(file.record.open_flags) & O_ACCMODE; }

Result<ScopedFd> open_fifo(const ParsedOpenFile& file, int mode) {
  const std::string path(file.path);
  ScopedFd fd(open(path.c_str(), mode | O_NONBLOCK | O_CLOEXEC));
  if (fd.valid()) return fd;
  return make_error(ExitCode::kFileChanged, errno, "{} cannot be opened again ({}): make it with mkfifo",
                    path, errno_name(errno));
}

}  // namespace

Result<void> DescriptorBuilder::refill_pipe(const ParsedOpenFile& file, int write_end) {
  const auto& r = file.record;
  if (r.pipe_size != 0 && fcntl(write_end, F_GETPIPE_SZ) != static_cast<int>(r.pipe_size) &&
      fcntl(write_end, F_SETPIPE_SZ, static_cast<int>(r.pipe_size)) < 0) {
    return make_error(
        ExitCode::kUnavailable, errno,
        "a pipe of {} bytes cannot be made ({}): raise /proc/sys/fs/pipe-max-size or restart as root",
        r.pipe_size, errno_name(errno));
  }
  // Packets were saved one by one: one write each keeps them apart.
  bool packets = false;  // of images that do not say it of each
  for (const auto& other : meta_.open_files) {
    if (other.record.object == r.object && (other.record.open_flags & O_DIRECT) != 0 &&
        access_mode(other) != O_RDONLY) {
      packets = true;
    }
  }
  const int flags = fcntl(write_end, F_GETFL);
  for (const auto& c : meta_.contents) {
    if (c.record.open_file == 0 || c.record.object != r.object) continue;
    const bool packet =
        (c.record.offset & kPipePacket) != 0 || (packets && (c.record.offset & kPipeStream) == 0);
    fcntl(write_end, F_SETFL, (flags & ~O_DIRECT) | O_NONBLOCK | (packet ? O_DIRECT : 0));
    ssize_t n = write(write_end, c.bytes.data(), c.bytes.size());
    if (n != static_cast<ssize_t>(c.bytes.size())) {
      return make_error(ExitCode::kSystem, n < 0 ? errno : EAGAIN,
                        "the {} bytes in {} do not fit into a new pipe", c.bytes.size(), file.path);
    }
  }
  fcntl(write_end, F_SETFL, flags);
  return {};
}

Result<ScopedFd> DescriptorBuilder::make_pipe(const ParsedOpenFile& file) {
  auto& ends = pipes_[file.record.object];
  if (ends.read < 0) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
      return make_error(ExitCode::kSystem, errno, "{} cannot be made again ({})", file.path,
                        errno_name(errno));
    }
    // One that was a FIFO before its name was removed has the rights of that file.
    struct stat pipe {};
    if (fstat(fds[0], &pipe) == 0 && ((pipe.st_mode ^ file.record.mode) & 07777) != 0 &&
        fchmod(fds[0], file.record.mode & 07777) != 0)
      say("{} does not get its rights again ({})", file.path, errno_name(errno));
    auto park_end = [&](int fd, int mode) {
      for (const auto& other : meta_.open_files) {
        if (other.record.object == file.record.object && access_mode(other) == mode)
          return options_.working->park_at_home(ScopedFd(fd), other.record.id, "a pipe");
      }
      return options_.working->park(ScopedFd(fd), "a pipe");
    };
    auto read_end = park_end(fds[0], O_RDONLY);
    auto write_end = park_end(fds[1], O_WRONLY);
    if (!read_end) return read_end.error();
    if (!write_end) return write_end.error();
    ends.read = *read_end;
    ends.write = *write_end;
    CKPT_TRY(refill_pipe(file, ends.write));
  }
  // The first to ask for an end gets the one that pipe2 made; others (opened through /proc) get
  // open files of their own.
  const int mode = access_mode(file);
  ScopedFd made;
  if (mode == O_RDONLY && !ends.read_used) {
    ends.read_used = true;
    made.reset(fcntl(ends.read, F_DUPFD_CLOEXEC, 0));
  } else if (mode == O_WRONLY && !ends.write_used) {
    ends.write_used = true;
    made.reset(fcntl(ends.write, F_DUPFD_CLOEXEC, 0));
  } else {
    auto again = open_again(file, mode == O_RDONLY ? ends.read : ends.write, mode | O_CLOEXEC);
    if (!again) return again;
    made = std::move(*again);
  }
  fcntl(made.get(), F_SETFL, static_cast<int>(file.record.open_flags) & kSettable);
  return made;
}

Result<int> DescriptorBuilder::open_fifo_holder(const ParsedOpenFile& file) {
  auto fd = open_fifo(file, O_RDWR);
  if (!fd) return fd.error();
  int queued = 0;
  ioctl(fd->get(), FIONREAD, &queued);
  if (queued == 0) {
    CKPT_TRY(refill_pipe(file, fd->get()));
  } else {
    say("{} holds {} bytes of another process: those saved with the program are not put back", file.path,
        queued);
  }
  return options_.working->park(std::move(*fd), "a FIFO");
}

// Readers of this FIFO that poll(2) shows no POLLHUP, though no writer is in the job: they had none since
// they were opened.
bool DescriptorBuilder::has_unwritten(uint64_t object) const {
  bool unwritten = false, written = false;
  for (const ParsedOpenFile& f : meta_.open_files) {
    if (f.record.object != object || kind_of(f) != OpenFileKind::kFifo) continue;
    unwritten |= (f.record.flags & kOpenFileUnwritten) != 0;
    written |= is_writable(f.record);
  }
  return unwritten && !written;
}

// Once such a reader is open no writer of ours may come, so all readers of the FIFO are opened at once: first
// those whose writer has gone, while there is one, then the others. The bytes need a writer too.
Result<void> DescriptorBuilder::open_unwritten(const ParsedOpenFile& file) {
  auto& readers = unwritten_[file.record.object];
  auto add = [&](uint32_t id, const ParsedOpenFile& f) -> Result<void> {
    auto fd = open_fifo(f, O_RDONLY);
    if (!fd) return fd.error();
    auto parked = options_.working->park(std::move(*fd), "a FIFO");
    if (!parked) return parked.error();
    readers[id] = *parked;
    return {};
  };
  std::vector<const ParsedOpenFile*> ended, unwritten;
  for (const ParsedOpenFile& f : meta_.open_files) {
    if (f.record.object != file.record.object || kind_of(f) != OpenFileKind::kFifo) continue;
    ((f.record.flags & kOpenFileUnwritten) != 0 ? unwritten : ended).push_back(&f);
  }
  const bool has_bytes =
      std::any_of(meta_.contents.begin(), meta_.contents.end(), [&](const ParsedFileContent& c) {
        return c.record.open_file != 0 && c.record.object == file.record.object;
      });
  if (has_bytes || !ended.empty()) {
    auto holder = open_fifo_holder(file);
    if (!holder) return holder.error();
    const ScopedFd writer(*holder);
    CKPT_TRY(add(0, file));  // so that the bytes stay
    for (const ParsedOpenFile* f : ended) CKPT_TRY(add(f->record.id, *f));
  }
  for (const ParsedOpenFile* f : unwritten) CKPT_TRY(add(f->record.id, *f));
  return {};
}

Result<ScopedFd> DescriptorBuilder::make_fifo(const ParsedOpenFile& file) {
  const uint64_t object = file.record.object;
  ScopedFd made;
  if (has_unwritten(object)) {
    if (unwritten_.count(object) == 0) CKPT_TRY(open_unwritten(file));
    made.reset(fcntl(unwritten_.at(object).at(file.record.id), F_DUPFD_CLOEXEC, 0));
  } else {
    // Open in both directions, so that no open below waits for a partner.
    if (fifo_holders_.count(object) == 0) {
      auto holder = open_fifo_holder(file);
      if (!holder) return holder.error();
      fifo_holders_[object] = *holder;
    }
    auto fd = open_fifo(file, access_mode(file));
    if (!fd) return fd;
    made = std::move(*fd);
  }
  fcntl(made.get(), F_SETFL, static_cast<int>(file.record.open_flags) & kSettable);
  return made;
}

Result<ScopedFd> DescriptorBuilder::open_terminal(const ParsedOpenFile& file) {
  ScopedFd fd(open("/dev/tty", access_mode(file) | O_NOCTTY | O_CLOEXEC));
  for (int stream : {1, 2, 0}) {
    if (!fd.valid() && standard_[stream] >= 0 && isatty(standard_[stream]) == 1) {
      fd.reset(fcntl(standard_[stream], F_DUPFD_CLOEXEC, 0));
    }
  }
  if (fd.valid()) return fd;
  fd.reset(open("/dev/null", access_mode(file) | O_CLOEXEC));
  if (!fd.valid())
    return make_error(ExitCode::kSystem, errno, "/dev/null cannot be opened ({})", errno_name(errno));
  say("{} was a terminal and there is none here: it leads to /dev/null now",
      describe(file, first_descriptor(file)));
  return fd;
}

// Descriptors 0, 1 and 2 are the restarter's own, each by itself: they may have been one open file
// (a terminal) and be three now. Others follow the standard stream that they were a copy of.
Result<ScopedFd> DescriptorBuilder::restarters_stream(const ParsedOpenFile& file, int fd) {
  int source = fd <= 2 ? fd : -1;
  for (int stream : {1, 2, 0}) {
    if (source >= 0) break;
    for (const auto& d : meta_.descriptors) {
      if (d.fd != stream) continue;
      const ParsedOpenFile* other = meta_.open_file(d.open_file);
      // A terminal is one inode for all; of pipes and sockets too, both ways.
      if (other == nullptr || other->record.object != file.record.object || !is_restarters(*other)) continue;
      if (access_mode(file) == O_WRONLY && stream == 0 && access_mode(*other) == O_RDONLY) continue;
      source = stream;
    }
  }
  if (source < 0 && options_.lone_pipes != nullptr) {
    const auto it = options_.lone_pipes->find(file.record.object);
    if (it != options_.lone_pipes->end()) source = it->second;  // another process of the job knows
  }
  if (source < 0) return open_terminal(file);
  ScopedFd made;
  if (standard_[source] >= 0) {
    made.reset(fcntl(standard_[source], F_DUPFD_CLOEXEC, options_.working->first()));
    int flags = fcntl(made.get(), F_GETFL);
    const int wanted = static_cast<int>(file.record.open_flags) & O_NONBLOCK;
    if (made.valid() && (flags & O_NONBLOCK) != wanted)
      fcntl(made.get(), F_SETFL, (flags & ~O_NONBLOCK) | wanted);
  } else {
    // Closed where we were started; a program that had it open must not have its next file there.
    ScopedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    made.reset(fcntl(null.get(), F_DUPFD_CLOEXEC, options_.working->first()));
  }
  if (!made.valid()) {
    return make_error(ExitCode::kSystem, errno, "descriptor {} cannot be made ({})", fd, errno_name(errno));
  }
  return made;
}

}  // namespace ckpt
