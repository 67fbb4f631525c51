#include "restart/descriptors/old_names.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/checks/named_points.h"
#include "base/raii_fd.h"
#include "image/format/saved_file_names.h"
#include "restart/files/file_to_come.h"
#include "restart/files/vanished_file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int kMostEntries = 100'000;             // of all directories that are read
constexpr int64_t kFileClockLateNs = 20'000'000;  // the clock that stamps files is behind by so much
constexpr size_t kLongestPart = 160;              // of a file's name, in the name that it has aside

// The name in this directory that leads to the file; empty: none.
std::string name_in(const fs::path& directory, const struct stat& file, int* left) {
  if (directory.string().ends_with(kSavedFilesSuffix)) return {};  // names beside images do not count
  std::error_code ignored;
  for (fs::directory_iterator entry(directory, ignored), end; entry != end && --*left > 0;
       entry.increment(ignored)) {
    struct stat st;
    if (entry->is_regular_file(ignored) && lstat(entry->path().c_str(), &st) == 0 &&
        st.st_dev == file.st_dev && st.st_ino == file.st_ino)
      return entry->path();
    if (ignored) break;
  }
  return {};
}

std::string other_name(const std::string& path, const struct stat& file) {
  int left = kMostEntries;
  const fs::path directory = fs::path(path).parent_path(), above = directory.parent_path();
  if (std::string found = name_in(directory, file, &left); !found.empty()) return found;
  if (above == directory) return {};
  if (std::string found = name_in(above, file, &left); !found.empty()) return found;
  std::error_code ignored;
  for (fs::directory_iterator entry(above, ignored), end; entry != end && left > 0;
       entry.increment(ignored)) {
    if (ignored) break;
    if (!entry->is_directory(ignored) || entry->is_symlink(ignored) || entry->path() == directory) continue;
    if (std::string found = name_in(entry->path(), file, &left); !found.empty()) return found;
  }
  return {};
}

// A file system that does not tell when a file was made gives no answer: false.
bool made_since(const std::string& path, int64_t taken_ns, struct statx* now) {
  return statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, now) == 0 &&
         (now->stx_mask & STATX_BTIME) != 0 &&
         now->stx_btime.tv_sec * 1'000'000'000 + now->stx_btime.tv_nsec > taken_ns - kFileClockLateNs;
}

}  // namespace

Result<std::string> take_name_back(const NameTaken& name, const Say& say) {
  struct stat ours;
  struct statx now;
  if (lstat(name.link.c_str(), &ours) != 0 || !made_since(name.path, name.taken_ns, &now) ||
      !S_ISREG(now.stx_mode) || now.stx_uid != ours.st_uid)
    return std::string();
  // The number tells two files apart: one that has a name aside is not made anew.
  const std::string aside = fmt::format("{}/{}.{}.replaced-{}", name.directory_aside,
                                        fs::path(name.path).filename().string().substr(0, kLongestPart),
                                        uint64_t{now.stx_ino}, name.sequence);
  if (::link(name.path.c_str(), aside.c_str()) != 0 && errno != EEXIST) return std::string();
  if (name.one_name) CKPT_TRY(separate_from_new_name(name.link, name.path, say));
  // A restart that is killed here leaves no file of the name, as where it was removed: the next one gives it
  // back.
  if (unlink(name.path.c_str()) != 0) return std::string();
  points::at("restart.passing");
  if (::link(name.link.c_str(), name.path.c_str()) == 0) return aside;
  (void)!::link(aside.c_str(), name.path.c_str());
  return std::string();
}

bool copy_file(const std::string& from_path, const std::string& to_path, uint32_t mode) {
  ScopedFd from(open(from_path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!from.valid() || fstat(from.get(), &st) != 0) return false;
  FileToCome to = FileToCome::regular(to_path);
  if (!to.valid()) return false;
  points::at("restart.copying");
  off_t left = st.st_size;
  if (left > 0 && ioctl(to.fd(), FICLONE, from.get()) == 0) left = 0;
  while (left > 0) {
    const ssize_t n = sendfile(to.fd(), from.get(), nullptr, static_cast<size_t>(left));
    if (n <= 0) break;
    left -= n;
  }
  const timespec times[2] = {st.st_atim, st.st_mtim};
  // Its owner's before it has more than an owner's rights; what cannot be given away runs as nobody else.
  const bool own = st.st_uid == geteuid() && st.st_gid == getegid();
  const bool given = own || fchown(to.fd(), st.st_uid, st.st_gid) == 0;
  return left == 0 && fchmod(to.fd(), mode & (given ? 07777 : 0777)) == 0 && futimens(to.fd(), times) == 0 &&
         to.take_name();
}

Result<void> separate_from_new_name(const std::string& link, const std::string& path, const Say& say) {
  struct stat st;
  if (lstat(link.c_str(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink < 2) return {};
  const std::string name = other_name(path, st);
  if (name.empty()) return {};
  const std::string made = passing_name_beside(name);
  bool done = copy_file(name, made, st.st_mode);
  if (done) {
    const ScopedFd file(open(made.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    done = file.valid() && fsync(file.get()) == 0 && rename(made.c_str(), name.c_str()) == 0;
    if (!done) unlink(made.c_str());
  }
  if (!done) {
    return make_error(
        ExitCode::kIo, errno,
        "{} was renamed to {} since the checkpoint, and cannot be copied to have both ({}): make room there",
        path, name, errno_name(errno));
  }
  if (say) say(fmt::format("{} was renamed to {} since the checkpoint, which stays as it is", path, name));
  return {};
}

Result<void> put_back_temporary(const std::string& saved, const Say& say) {
  std::error_code ignored;
  for (fs::directory_iterator entry(saved, ignored), end; entry != end; entry.increment(ignored)) {
    if (ignored) break;
    const std::string own = entry->path();
    if (!own.ends_with(kSavedNameSuffix) || !entry->is_symlink(ignored)) continue;
    const std::string text = fs::read_symlink(own, ignored);
    const std::string link = own.substr(0, own.size() - kSavedNameSuffix.size());
    if (ignored || text.size() < 2 || text[1] != '/') continue;
    const std::string path = text.substr(1);
    struct stat st;
    if (lstat(path.c_str(), &st) == 0 || errno != ENOENT || lstat(link.c_str(), &st) != 0) continue;
    if (text[0] == kSavedOneName) CKPT_TRY(separate_from_new_name(link, path, say));
    const bool back = ::link(link.c_str(), path.c_str()) == 0;
    if (say && back) say(fmt::format("{} was gone: it is there again", path));
    if (say && !back)
      say(fmt::format("{} was gone and cannot get its name back ({})", path, errno_name(errno)));
  }
  return {};
}

Result<void> make_directory_again(const std::string& path, uint32_t mode, const ProcessRecord& process) {
  CKPT_TRY(make_directory_of(path, process));
  auto fail = [&](const char* what) {
    return make_error(ExitCode::kFileChanged, errno,
                      "{} was a directory at the checkpoint and cannot be {} ({}): make it (mkdir)", path,
                      what, errno_name(errno));
  };
  const fs::path place(path);
  const ScopedFd above(open(place.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  FileToCome made = FileToCome::folder(above.get(), place.filename());
  if (!made.valid()) return fail("made again");
  points::at("restart.directory");
  if (geteuid() == 0 && fchown(made.fd(), process.uid[1], process.gid[1]) != 0)
    return fail("given to its owner");
  if (fchmod(made.fd(), mode & 07777) != 0) return fail("given its rights");
  if (!made.take_name()) return fail("given its name");
  return {};
}

}  // namespace ckpt
