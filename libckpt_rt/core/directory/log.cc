#include "libckpt_rt/core/directory/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

int open_log(int dir_fd, int flags) {
  // Without O_NONBLOCK a FIFO of that name would wait for somebody who reads it.
  ScopedFd fd(static_cast<int>(sys::call(
      __NR_openat, dir_fd, "ckpt_rt.log",
      O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | flags, 0600)));
  struct stat st;
  if (!fd.valid() || sys::failed(sys::call(__NR_fstat, fd.get(), &st)) || !S_ISREG(st.st_mode)) return -1;
  return fd.release();
}

void log_line(int dir_fd, std::string_view text) {
  if (!user_settings().log || dir_fd < 0) return;
  const ScopedFd fd(open_log(dir_fd, 0));
  if (!fd.valid()) return;
  char head[64];
  int64_t now = now_ns(CLOCK_REALTIME);
  auto n = fmt::format_to_n(head, sizeof(head), "{}.{:03} pid {}: ", now / 1'000'000'000,
                            now / 1'000'000 % 1000, this_process.pid);
  char newline = '\n';
  // One write for one line: several processes may share a directory.
  iovec parts[3] = {{head, n.size}, {const_cast<char*>(text.data()), text.size()}, {&newline, 1}};
  sys::call(__NR_writev, fd.get(), parts, 3);
}

}  // namespace ckpt
