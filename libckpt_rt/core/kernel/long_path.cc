#include "libckpt_rt/core/kernel/long_path.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <cstring>

#include "base/files/directory_scan.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr long kPathMax = 4096;

// Its name in `parent`; empty: none.
std::string_view name_in(int parent, const struct stat& wanted, Arena& arena) {
  std::string_view found;
  scan_directory(parent, [&](std::string_view name) {
    struct stat st;
    if (!found.empty() || name == "." || name == ".." ||
        sys::call(__NR_newfstatat, parent, name.data(), &st, AT_SYMLINK_NOFOLLOW) != 0 ||
        st.st_ino != wanted.st_ino || st.st_dev != wanted.st_dev)
      return;
    auto* copy = static_cast<char*>(arena.allocate(name.size(), 1));
    if (copy == nullptr) return;
    std::memcpy(copy, name.data(), name.size());
    found = {copy, name.size()};
  });
  return found;
}

// The path that the kernel tells. -errno: it does not.
long short_path(int fd, char* text) {
  char link[64];
  *fmt::format_to_n(link, sizeof(link) - 1, "/proc/thread-self/fd/{}", fd).out = '\0';
  return sys::call(__NR_readlinkat, AT_FDCWD, link, text, kPathMax);
}

Error unknown(int error) {
  return make_error(ExitCode::kUnsupported, error, "the path of the working directory cannot be found ({})",
                    errno_name(error));
}

}  // namespace

Result<std::string_view> long_path_of(Arena& arena, const char* link) {
  // Room at whose end the path is put together, from the last name on.
  constexpr size_t kRoom = 256 << 10;
  auto* const room = static_cast<char*>(arena.allocate(kRoom, 1));
  auto* const prefix = static_cast<char*>(arena.allocate(kPathMax, 1));
  if (room == nullptr || prefix == nullptr) return unknown(-ENOMEM);
  size_t begin = kRoom;
  auto put_before = [&](std::string_view text) {
    if (text.size() > begin) return false;
    begin -= text.size();
    std::memcpy(room + begin, text.data(), text.size());
    return true;
  };
  ScopedFd here(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, link, O_PATH | O_DIRECTORY | O_CLOEXEC, 0L)));
  if (!here.valid()) return unknown(here.get());
  for (;;) {
    struct stat st;
    if (const long r = sys::call(__NR_newfstatat, here.get(), "", &st, AT_EMPTY_PATH); r != 0)
      return unknown(static_cast<int>(r));
    if (st.st_nlink == 0) return std::string_view("/ (deleted)");
    const long n = short_path(here.get(), prefix);
    if (n >= 0) {
      if (!put_before({prefix, static_cast<size_t>(n)})) return unknown(-ENOMEM);
      return std::string_view(room + begin, kRoom - begin);
    }
    if (n != -ENAMETOOLONG) return unknown(static_cast<int>(n));
    ScopedFd parent(
        static_cast<int>(sys::call(__NR_openat, here.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0L)));
    if (!parent.valid()) return unknown(parent.get());
    const std::string_view name = name_in(parent.get(), st, arena);
    if (name.empty()) return unknown(-ENOENT);
    if (!put_before(name) || !put_before("/")) return unknown(-ENOMEM);
    here = std::move(parent);
  }
}

}  // namespace ckpt
