#include "restart/files/file_to_come.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/result.h"

namespace ckpt {
namespace {

// Nobody else's: another host may be making the same file, and processes of two hosts have the same numbers.
std::string new_passing_name() {
  uint64_t number = 0;
  (void)!getrandom(&number, sizeof(number), 0);
  return fmt::format(".ckpt-restored-{:016x}", number);
}

}  // namespace

std::string passing_name_beside(const std::string& path) {
  const size_t slash = path.rfind('/');
  return (slash == path.npos ? "" : path.substr(0, slash + 1)) + new_passing_name();
}

FileToCome::FileToCome() : passing_(new_passing_name()) {}

FileToCome::FileToCome(FileToCome&& other) noexcept
    : directory_(other.directory_),
      own_directory_(std::move(other.own_directory_)),
      fd_(std::move(other.fd_)),
      name_(std::move(other.name_)),
      passing_(std::move(other.passing_)),
      has_passing_name_(std::exchange(other.has_passing_name_, false)),
      is_folder_(other.is_folder_) {}

// A file that has no name at all, where the file system has such files.
void FileToCome::make_regular() {
  fd_.reset(openat(directory(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd_.valid() || errno == EACCES || errno == EPERM || errno == EROFS || errno == ENOSPC) return;
  fd_.reset(openat(directory(), passing_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  has_passing_name_ = fd_.valid();
}

FileToCome FileToCome::regular(int directory, const std::string& name) {
  FileToCome file;
  file.directory_ = directory;
  file.name_ = name;
  file.make_regular();
  return file;
}

FileToCome FileToCome::regular(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string above = slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  FileToCome file;
  file.name_ = slash == path.npos ? path : path.substr(slash + 1);
  file.own_directory_.reset(open(above.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (file.own_directory_.valid()) file.make_regular();
  return file;
}

FileToCome FileToCome::folder(int directory, const std::string& name) {
  FileToCome file;
  file.directory_ = directory;
  file.name_ = name;
  file.is_folder_ = true;
  file.has_passing_name_ = mkdirat(directory, file.passing_.c_str(), 0700) == 0;
  if (file.has_passing_name_)
    file.fd_.reset(openat(directory, file.passing_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  return file;
}

FileToCome FileToCome::fifo(int directory, const std::string& name) {
  FileToCome file;
  file.directory_ = directory;
  file.name_ = name;
  file.has_passing_name_ = mkfifoat(directory, file.passing_.c_str(), 0600) == 0;
  if (file.has_passing_name_)
    file.fd_.reset(openat(directory, file.passing_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  return file;
}

bool FileToCome::take_name() {
  if (!has_passing_name_)
    return linkat(AT_FDCWD, fmt::format("/proc/self/fd/{}", fd_.get()).c_str(), directory(), name_.c_str(),
                  AT_SYMLINK_FOLLOW) == 0;
  int done = renameat2(directory(), passing_.c_str(), directory(), name_.c_str(), RENAME_NOREPLACE);
  // A file system that cannot (NFS).
  if (done != 0 && errno == EINVAL && !is_folder_)
    done = linkat(directory(), passing_.c_str(), directory(), name_.c_str(), 0) == 0
               ? unlinkat(directory(), passing_.c_str(), 0)
               : -1;
  else if (done != 0 && errno == EINVAL &&
           faccessat(directory(), name_.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0)
    done = renameat(directory(), passing_.c_str(), directory(), name_.c_str());
  if (done == 0) has_passing_name_ = false;
  return done == 0;
}

FileToCome::~FileToCome() {
  if (!has_passing_name_) return;
  const int error = errno;
  unlinkat(directory(), passing_.c_str(), is_folder_ ? AT_REMOVEDIR : 0);
  errno = error;
}

}  // namespace ckpt
