#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "base/memory/bytes.h"
#include "image/format/records/fanotify_records.h"
#include "restart/descriptors/builder.h"
#include "restart/files/shut_file.h"

// Files, directories and devices that have a name: opened again by it.

namespace ckpt {
namespace {

const char* type_name(uint32_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a directory";
    case S_IFCHR:
      return "a character device";
    case S_IFBLK:
      return "a block device";
    case S_IFIFO:
      return "a FIFO";
    case S_IFLNK:
      return "a symbolic link";
    default:
      return "a socket";
  }
}

// "/proc/PID/rest": the process, and "/rest". 0: it is no such path.
int process_of(std::string_view path, std::string_view* rest) {
  constexpr std::string_view kProc = "/proc/";
  if (!path.starts_with(kProc)) return 0;
  path.remove_prefix(kProc.size());
  int pid = 0;
  size_t at = 0;
  for (; at < path.size() && at < 9 && path[at] >= '0' && path[at] <= '9'; ++at)
    pid = pid * 10 + (path[at] - '0');
  if (at == 0 || (at < path.size() && path[at] != '/')) return 0;
  *rest = path.substr(at);
  return pid;
}

// The program may have opened it with rights that it gave up, or was handed it open: its user is no answer
// then.
std::string who_may_open(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0)
    return "it lies where this user may not look; restart as root or as one who may";
  const passwd* owner = getpwuid(st.st_uid);
  return fmt::format("it belongs to user {}{}{} (mode {:o}); restart as one who may open it so, or let {} do",
                     st.st_uid, owner != nullptr ? ", " : "", owner != nullptr ? owner->pw_name : "",
                     st.st_mode & 07777, geteuid());
}

}  // namespace

bool opened_by_path(const ParsedOpenFile& file) {
  if ((file.record.flags & kOpenFileDeleted) != 0) return false;
  switch (static_cast<OpenFileKind>(file.record.kind)) {
    case OpenFileKind::kRegular:
    case OpenFileKind::kDirectory:
    case OpenFileKind::kDevice:
    case OpenFileKind::kFifo:
      return true;
    default:
      return false;
  }
}

int reopen_flags(const OpenFileRecord& r) {
  int flags = static_cast<int>(r.open_flags);
  // O_TMPFILE is two bits, one of them O_DIRECTORY.
  if ((flags & O_TMPFILE) == O_TMPFILE) flags &= ~O_TMPFILE;
  flags &= ~(O_CREAT | O_EXCL | O_TRUNC);
  // Of a regular file it means nothing, and cannot be set later.
  if (!S_ISREG(r.mode)) flags &= ~O_ASYNC;
  return flags | O_CLOEXEC | O_NOCTTY;
}

Result<ScopedFd> DescriptorBuilder::open_by_path(const ParsedOpenFile& file) {
  const std::string path = name_to_open(file);
  const auto& r = file.record;
  int flags = reopen_flags(r);
  if (S_ISLNK(r.mode)) flags |= O_NOFOLLOW;
  auto is_of_its_type = [&](const struct stat& now) { return (now.st_mode & S_IFMT) == (r.mode & S_IFMT); };
  auto other_type = [&](const struct stat& now) {
    return make_error(ExitCode::kFileChanged, 0, "{} is {} now, it was {} at the checkpoint: put that back",
                      path, type_name(now.st_mode), type_name(r.mode));
  };
  struct stat st;
  // Not opened: a FIFO in its place would hold us up until somebody opens the other end.
  if ((S_ISLNK(r.mode) ? lstat : stat)(path.c_str(), &st) == 0 && !is_of_its_type(st)) return other_type(st);
  ScopedFd fd(open(path.c_str(), flags));
  // O_NOATIME is for the file's owner only; the program may have given up that right since.
  if (!fd.valid() && errno == EPERM && (flags & O_NOATIME) != 0)
    fd.reset(open(path.c_str(), flags & ~O_NOATIME));
  if (!fd.valid()) {
    int e = errno;
    const std::string remedy = e == ENOENT || e == ENOTDIR ? "put the file back where it was"
                               : e == EACCES || e == EPERM ? who_may_open(path)
                                                           : "make it openable again";
    return make_error(e == EACCES || e == EPERM ? ExitCode::kPermission : ExitCode::kFileChanged, e,
                      "{} cannot be opened again ({}): {}", path, errno_name(e), remedy);
  }
  if (fstat(fd.get(), &st) != 0) {
    return make_error(ExitCode::kSystem, errno, "{}: fstat ({})", path, errno_name(errno));
  }
  if (!is_of_its_type(st)) return other_type(st);
  if ((S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) && st.st_rdev != r.rdev) {
    return make_error(ExitCode::kFileChanged, 0,
                      "{} is another device than at the checkpoint: make the same one", path);
  }
  if (!is_place_only(r) && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode)) &&
      lseek(fd.get(), static_cast<off_t>(r.offset), SEEK_SET) < 0) {
    return make_error(ExitCode::kFileChanged, errno,
                      "{} cannot be read from byte {} on ({}): put back the file of the checkpoint", path,
                      r.offset, errno_name(errno));
  }
  return fd;
}

bool is_of_process(const ParsedOpenFile& file) {
  std::string_view rest;
  return opened_by_path(file) && process_of(file.path, &rest) != 0;
}

// Of the program itself what is called /proc/self now. Other processes of the job are there. Others have
// ended, or threads do not exist yet: what is read of an ended process is nothing.
Result<ScopedFd> DescriptorBuilder::open_of_process(const ParsedOpenFile& file) {
  std::string_view rest;
  const int pid = process_of(file.path, &rest);
  const bool own = pid == meta_.process.record.pid;
  const std::string path = own ? fmt::format("/proc/self{}", rest) : std::string(file.path);
  ScopedFd fd(open(path.c_str(), reopen_flags(file.record)));
  struct stat st;
  if (fd.valid() && fstat(fd.get(), &st) == 0 && (st.st_mode & S_IFMT) == (file.record.mode & S_IFMT)) {
    if (!is_place_only(file.record)) lseek(fd.get(), static_cast<off_t>(file.record.offset), SEEK_SET);
    return fd;
  }
  say("{}: the process or thread that it is about is not there: it reads as of one that has ended",
      describe(file, first_descriptor(file)));
  return make_placeholder(file);
}

Result<void> DescriptorBuilder::check(const ParsedOpenFile& file) {
  if (kind_of(file) == OpenFileKind::kMessageQueue) return check_message_queue(file);
  if (kind_of(file) == kFanotify) return check_fanotify(file);
  if (!opened_by_path(file) || is_of_process(file)) return {};
  const auto& r = file.record;
  struct stat st;
  if (S_ISFIFO(r.mode)) {  // opening would wait for, or be seen by, the other end
    const bool there = stat(std::string(file.path).c_str(), &st) == 0;
    if (there ? S_ISFIFO(st.st_mode) : errno == ENOENT && file.path.starts_with('/'))
      return {};  // or is made again
    return make_error(ExitCode::kFileChanged, errno,
                      "{} was a FIFO at the checkpoint: make it again (mkfifo)", file.path);
  }
  if (is_saved(file) || is_lost_directory(file)) return {};
  if (const auto it = options_.returning.find(file.path); it != options_.returning.end() && it->second)
    return {};
  auto fd = open_by_path(file);
  if (!fd && !(S_ISREG(r.mode) && opens_later(name_to_open(file), fd.error().sys_errno, st)))
    return fd.error();
  if (!S_ISREG(r.mode) || is_place_only(r)) return {};
  if (fd && fstat(fd->get(), &st) != 0) return {};
  const uint64_t now = static_cast<uint64_t>(st.st_size);
  if (now < r.size && !can_put_back(file)) {
    if (is_writable(r) || r.offset > now) {
      return make_error(
          ExitCode::kFileChanged, 0,
          "{} has {} bytes, at the checkpoint it had {}: put back a copy of that time, or restart from "
          "a checkpoint taken since",
          file.path, now, r.size);
    }
  }
  return {};
}

}  // namespace ckpt
