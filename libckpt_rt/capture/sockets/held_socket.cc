#include <errno.h>
#include <fcntl.h>

#include "base/clock.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

long set_lock(int socket, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return sys::call(__NR_fcntl, socket, static_cast<long>(F_SETLK), &lock);
}

}  // namespace

bool HeldSocket::hold(int socket) {
  constexpr timespec kStep{0, 50'000};
  int64_t deadline = 0;
  for (;;) {
    const long r = set_lock(socket, F_WRLCK);
    if (r == 0) break;
    // No such locks here: then nobody has one.
    if (r != -EAGAIN && r != -EACCES && r != -EINTR) return true;
    const int64_t now = now_ns();
    if (deadline == 0) deadline = now + library.settings.stop_timeout_ns;
    if (now > deadline) return false;
    sys::call(__NR_nanosleep, &kStep, nullptr);
  }
  socket_ = socket;
  return true;
}

void HeldSocket::release() {
  if (socket_ >= 0) set_lock(socket_, F_UNLCK);
  socket_ = -1;
}

}  // namespace ckpt
