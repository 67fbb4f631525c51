#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/checks/named_points.h"
#include "restart/descriptors/builder.h"
#include "restart/files/dying_processes.h"

// Journals of SQLite databases, which nobody needs to have open. A process that begins to use a database puts
// back what its journal holds, by the journal's name alone. A program that was killed leaves one, of later:
// the database would go back to the checkpoint, and then half way forward again. And a process that was about
// to remove its journal, closed already, needs one to remove.

namespace ckpt {
namespace {

using namespace std::string_view_literals;

// Rollback journal, write-ahead log and its index.
constexpr const char* kSuffixes[] = {"-journal", "-wal", "-shm"};
// Files are stamped by a clock that stands still between two ticks.
constexpr int64_t kTickNs = 20'000'000;

int64_t ns_of(const statx_timestamp& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

// Of a file system that knows no births, the last change of the inode is taken.
bool was_made_since(const struct statx& st, int64_t checkpoint_ns) {
  const bool knows = (st.stx_mask & STATX_BTIME) != 0;
  return ns_of(knows ? st.stx_btime : st.stx_ctime) >= checkpoint_ns - kTickNs;
}

// By this lock a process has the right to write; it takes it before it makes the journal, and gives it up
// after the journal is gone.
bool is_being_written(const ParsedOpenFile& file) {
  constexpr uint64_t kReservedByte = 0x40000001;
  bool is = false;
  for_each_detail<LockDetail>(file, OpenFileDetail::kLock, [&](const LockDetail& lock, Blob) {
    const bool covers =
        lock.start <= kReservedByte && (lock.length == 0 || kReservedByte - lock.start < lock.length);
    is = is || (lock.write != 0 && covers);
  });
  return is;
}

// The process that has a lock on the file, 0 if it has no number here, or kNobody.
constexpr int kNobody = -2;
int who_locks(int fd) {
  struct flock all {};
  all.l_type = F_WRLCK;
  all.l_whence = SEEK_SET;
  return fcntl(fd, F_GETLK, &all) != 0 || all.l_type == F_UNLCK ? kNobody : all.l_pid;
}

}  // namespace

bool DescriptorBuilder::is_database(const ParsedOpenFile& file) const {
  constexpr std::string_view kBegin = "SQLite format 3\0"sv;
  if ((file.record.flags & kOpenFileWhole) == 0 || !opened_by_path(file)) return false;
  return std::any_of(meta_.contents.begin(), meta_.contents.end(), [&](const ParsedFileContent& c) {
    return c.record.open_file != 0 && c.record.object == file.record.object && c.record.offset == 0 &&
           c.bytes.size() >= kBegin.size() && std::memcmp(c.bytes.data(), kBegin.data(), kBegin.size()) == 0;
  });
}

bool DescriptorBuilder::is_open_in_image(uint64_t inode) const {
  const auto* others = options_.open_in_job;
  return (others != nullptr && others->contains(inode)) ||
         std::any_of(meta_.open_files.begin(), meta_.open_files.end(),
                     [&](const ParsedOpenFile& f) { return f.record.inode == inode; });
}

Result<void> DescriptorBuilder::set_aside_journals() {
  for (const auto& file : meta_.open_files) {
    // Only of a database that goes back: a file that was put in its place since has a journal of its own.
    if (!is_database(file) || !can_put_back(file)) continue;
    CKPT_TRY(refuse_if_in_use(file));
    for (const char* suffix : kSuffixes) {
      const std::string path = std::string(file.path) + suffix;
      struct statx st {};
      if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &st) != 0 ||
          !S_ISREG(st.stx_mode) || is_open_in_image(st.stx_ino) ||
          !was_made_since(st, meta_.process.record.realtime_ns))
        continue;
      CKPT_TRY(set_aside(file, path, st.stx_ino));
    }
  }
  return {};
}

// A process that is not of the job, and keeps what it has read of the database. Where processes of the job
// are there, their own locks are.
Result<void> DescriptorBuilder::refuse_if_in_use(const ParsedOpenFile& file) const {
  if (options_.in_place) return {};
  for (const char* suffix : {"", "-shm"}) {
    const std::string path = std::string(file.path) + suffix;
    const ScopedFd fd(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) continue;
    int user = who_locks(fd.get());
    // Killed with the program, but of later than the checkpoint: nobody has waited for it yet.
    if (user > 0 && is_dying(user)) {
      await_dying({user});
      user = who_locks(fd.get());
    }
    if (user == kNobody) continue;
    // The kernel gives no number of a process in another pid namespace (0), nor of the owner of a lock that
    // belongs to an open file description (-1).
    return make_error(ExitCode::kUnavailable, 0,
                      "{} is in use by {}, and would change under it: end that one first", file.path,
                      user > 0 ? fmt::format("process {}", user) : "a process that has no number here");
  }
  return {};
}

// An empty one means: nothing is to be put back.
void DescriptorBuilder::make_journals() {
  for (const auto& file : meta_.open_files) {
    if (!is_database(file) || !can_put_back(file) || !is_being_written(file)) continue;
    const std::string path = std::string(file.path) + kSuffixes[0];
    const ScopedFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.valid() && errno != EEXIST)
      say("{} cannot be made ({}): the program may be about to remove it", path, errno_name(errno));
    struct stat st;
    if (!fd.valid() || stat(std::string(file.path).c_str(), &st) != 0) continue;
    points::at("restart.journal");
    (void)!fchown(fd.get(), st.st_uid, st.st_gid);
    fchmod(fd.get(), st.st_mode & 0777);
  }
}

// Moved, not copied: it may be long. Beside the image, or where that is another file system, beside itself.
Result<void> DescriptorBuilder::set_aside(const ParsedOpenFile& database, const std::string& path,
                                          uint64_t inode) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string places[] = {
      fmt::format("{}/{}.{}.later-{}", options_.image_directory, name, inode, options_.sequence),
      fmt::format("{}.{}.later-{}", path, inode, options_.sequence)};
  for (const std::string& to : places) {
    if (renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0) continue;
    points::at("restart.aside");
    has_changed_files_ = true;
    say("{} was made since the checkpoint, and would change {} again: it is {} now", path, database.path, to);
    return {};
  }
  return make_error(ExitCode::kFileChanged, errno,
                    "{} was made since the checkpoint, and would change {} again ({}): move it away", path,
                    database.path, errno_name(errno));
}

}  // namespace ckpt
