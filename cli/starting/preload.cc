#include "cli/starting/preload.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

constexpr const char* kSeparators = " :\t\n";

std::string own_directory() {
  char path[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n <= 0 || n == static_cast<ssize_t>(sizeof(path))) return "";
  std::string self(path, static_cast<size_t>(n));
  return self.substr(0, self.rfind('/'));
}

// Makes the directory or makes sure that it is ours alone: a link in it decides what gets loaded.
Result<void> make_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return failure(ExitCode::kCannotCreate, path, strerror(errno),
                   "make XDG_RUNTIME_DIR name a directory of yours");
  }
  struct stat st;
  if (lstat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
      (st.st_mode & 077) != 0) {
    return failure(ExitCode::kPermission, path, "is not a directory of yours alone (0700)",
                   "remove it, or make XDG_RUNTIME_DIR name a directory of yours");
  }
  return {};
}

}  // namespace

Result<std::string> find_library(const std::string& name) {
  std::string bin = own_directory();
  for (const char* relative : {"/../lib/", "/../" CKPT_LIBDIR "/"}) {
    char real[PATH_MAX];
    if (realpath((bin + relative + name).c_str(), real) != nullptr) return std::string(real);
  }
  return failure(ExitCode::kNotFound, name, fmt::format("not found beside {}", brief(bin)),
                 "build all targets, or install again");
}

Result<std::string> preloadable_path(const std::string& library) {
  if (library.find_first_of(kSeparators) == std::string::npos) return library;
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  std::string base = runtime != nullptr && runtime[0] == '/' && access(runtime, W_OK) == 0 ? runtime : "/tmp";
  if (base.find_first_of(kSeparators) != std::string::npos) base = "/tmp";
  base += fmt::format("/ckpt_rt-{}", geteuid());
  CKPT_TRY(make_private_directory(base));
  std::string directory = fmt::format("{}/{:016x}", base, XXH3_64bits(library.data(), library.size()));
  CKPT_TRY(make_private_directory(directory));
  std::string link = directory + library.substr(library.rfind('/'));
  // Under a name of our own first, then renamed: two `ckpt run` at once must not meet half a link.
  std::string fresh = fmt::format("{}.{}", link, getpid());
  if (symlink(library.c_str(), fresh.c_str()) != 0 || rename(fresh.c_str(), link.c_str()) != 0) {
    return failure(ExitCode::kCannotCreate, link, strerror(errno), "check the file system");
  }
  return link;
}

}  // namespace ckpt::cli
