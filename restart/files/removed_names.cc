#include "restart/files/removed_names.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>
#include <vector>

namespace ckpt {
namespace {

namespace fs = std::filesystem;

// The directory of a path. Those that are missing above it are there as long as this is.
class Above {
 public:
  Above(const fs::path& directory, Links links) : links_(links), fd_(open_or_make(directory)) {}
  Above(const Above&) = delete;
  Above& operator=(const Above&) = delete;
  ~Above() {
    for (auto it = made_.rbegin(); it != made_.rend(); ++it)
      unlinkat(it->above.get(), it->name.c_str(), AT_REMOVEDIR);
  }
  int fd() const { return fd_.get(); }

 private:
  struct Made {
    ScopedFd above;
    std::string name;
  };

  ScopedFd open_or_make(const fs::path& directory) {
    ScopedFd there = open_there(directory);
    if (there.valid() || errno != ENOENT || !directory.has_relative_path()) return there;
    ScopedFd above = open_or_make(directory.parent_path());
    const std::string name = directory.filename();
    if (!above.valid() || mkdirat(above.get(), name.c_str(), 0700) != 0) return {};
    ScopedFd fd(openat(above.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    made_.push_back({std::move(above), name});
    return fd;
  }

  ScopedFd open_there(const fs::path& directory) const {
    ScopedFd fd(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || links_ == Links::kFollowed) return fd;
    std::error_code error;
    if (fs::read_symlink("/proc/self/fd/" + std::to_string(fd.get()), error) == directory && !error)
      return fd;
    errno = ELOOP;
    return {};
  }

  const Links links_;
  std::vector<Made> made_;
  ScopedFd fd_;
};

// The program's own umask may shut its user out of what is made here.
class OpenUmask {
 public:
  OpenUmask() : before_(umask(077)) {}
  OpenUmask(const OpenUmask&) = delete;
  OpenUmask& operator=(const OpenUmask&) = delete;
  ~OpenUmask() { umask(before_); }

 private:
  const mode_t before_;
};

// What was just made under this name, without it. What has no name is nobody else's: another one that
// somebody puts there meanwhile is not taken.
ScopedFd take_name_away(int above, const std::string& name, int flags) {
  ScopedFd fd(openat(above, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  const int error = errno;
  unlinkat(above, name.c_str(), (flags & O_DIRECTORY) != 0 ? AT_REMOVEDIR : 0);
  struct stat st;
  if (!fd.valid()) {
    errno = error;
  } else if (fstat(fd.get(), &st) != 0 || st.st_nlink != 0) {
    fd.reset();
    errno = EBUSY;
  }
  return fd;
}

// make: under a name, in a directory: 0, or -1 and errno. Its own name first, then others.
template <typename Make>
ScopedFd make_removed(const fs::path& path, Links links, int flags, const Make& make) {
  constexpr int kTries = 100;
  const OpenUmask open_umask;
  const Above above(path.parent_path(), links);
  if (above.fd() < 0) return {};
  std::string name = path.filename();
  for (int i = 0; i < kTries; ++i) {
    if (make(above.fd(), name.c_str()) == 0) return take_name_away(above.fd(), name, flags);
    if (errno != EEXIST) return {};
    name = ".ckpt-restored-" + std::to_string(getpid()) + "-" + std::to_string(i);
  }
  return {};
}

}  // namespace

ScopedFd make_removed_directory(const std::string& path, Links links) {
  return make_removed(path, links, O_RDONLY | O_DIRECTORY,
                      [](int above, const char* name) { return mkdirat(above, name, 0700); });
}

ScopedFd make_removed_link(const std::string& path, const std::string& target, Links links) {
  return make_removed(path, links, O_PATH,
                      [&](int above, const char* name) { return symlinkat(target.c_str(), above, name); });
}

}  // namespace ckpt
