#include "restart/files/working_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace ckpt {

Result<void> WorkingFds::open_above(int highest_saved) {
  first_ = highest_saved < 2 ? 3 : highest_saved + 1;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  constexpr rlim_t kRoom = 4096;  // mapped files, objects, pipes
  rlim_t wanted = static_cast<rlim_t>(first_) + kRoom;
  if (limit.rlim_max < wanted) {
    rlimit more{wanted, wanted};  // with CAP_SYS_RESOURCE
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
  }
  if (limit.rlim_cur <= static_cast<rlim_t>(first_) + 16) {
    return make_error(ExitCode::kUnavailable, EMFILE,
                      "the program had descriptor {} open, the limit here is {}: raise it (ulimit -Hn {})",
                      highest_saved, static_cast<uint64_t>(limit.rlim_max), static_cast<uint64_t>(wanted));
  }
  return {};
}

Result<int> WorkingFds::park(ScopedFd fd, const char* what) {
  int up = fcntl(fd.get(), F_DUPFD_CLOEXEC, first_);
  if (up < 0) {
    return make_error(ExitCode::kUnavailable, errno,
                      "no descriptor left for {} ({}): raise the limit on open files (ulimit -Hn)", what,
                      errno_name(errno));
  }
  return up;
}

Result<void> WorkingFds::hold_numbers(std::span<const int> numbers, std::map<uint32_t, int> homes) {
  ScopedFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto up = park(std::move(null), "/dev/null");
  if (!up.ok()) return up.error();
  const ScopedFd parked(*up);
  for (int fd : numbers) {
    if (dup3(parked.get(), fd, O_CLOEXEC) < 0)
      return make_error(ExitCode::kSystem, errno, "descriptor {} cannot be made ({})", fd, errno_name(errno));
  }
  homes_ = std::move(homes);
  return {};
}

Result<int> WorkingFds::park_at_home(ScopedFd fd, uint32_t open_file, const char* what) {
  const auto home = homes_.find(open_file);
  if (home == homes_.end()) return park(std::move(fd), what);
  if (dup3(fd.get(), home->second, O_CLOEXEC) < 0) {
    return make_error(ExitCode::kSystem, errno, "descriptor {} cannot be made ({})", home->second,
                      errno_name(errno));
  }
  return home->second;
}

int WorkingFds::find_object(uint64_t object) const {
  auto it = objects_.find(object);
  return it == objects_.end() ? -1 : it->second;
}

Result<int> WorkingFds::add_object(uint64_t object, ScopedFd fd, const char* what) {
  auto parked = park(std::move(fd), what);
  if (parked.ok()) objects_.emplace(object, *parked);
  return parked;
}

}  // namespace ckpt
