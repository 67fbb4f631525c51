#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

// As the kernel would have it: what can be said at once is said, a Unix socket that would have had to wait is
// not connected, and one of the Internet goes on in the background. A time limit that is over at once asks
// the kernel for that; no handler of the program runs while the socket has it.
long interrupted_connect(int fd, const void* address, uint32_t length) {
  uint64_t before = 0;
  const uint64_t all = ~0ull;
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof(all));
  const timeval at_once{0, 1}, never{};
  sys::call(__NR_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &at_once, sizeof(at_once));
  const long r = sys::call(__NR_connect, fd, address, length);
  sys::call(__NR_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof(never));
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof(before));
  return r == -EINPROGRESS || r == -EALREADY || r == -EAGAIN ? -EINTR : r;
}

}  // namespace ckpt::calls
