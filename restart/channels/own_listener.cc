#include "restart/channels/own_listener.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "restart/channels/hosts_plan.h"

namespace ckpt {

bool OwnListener::accept_one(int client) {
  SocketName from, own;
  from.length = own.length = sizeof(from.address);
  ScopedFd accepted(accept4(fd_, reinterpret_cast<sockaddr*>(&from.address), &from.length, SOCK_CLOEXEC));
  if (!accepted.valid()) return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR;
  const bool known = getsockname(client, reinterpret_cast<sockaddr*>(&own.address), &own.length) == 0;
  if (known && end_text(from) == end_text(own)) other_end_ = std::move(accepted);
  return true;
}

int OwnListener::connect(int client, const SocketName& to) {
  constexpr int kLongestWaitMs = 10'000;  // the kernel may send again what found no room
  other_end_.reset();
  const int flags = fcntl(client, F_GETFL);
  fcntl(client, F_SETFL, flags | O_NONBLOCK);
  int error = ::connect(client, to.get(), to.length) == 0 ? 0 : errno;
  while (error == EINPROGRESS || (error == 0 && !other_end_.valid())) {
    pollfd waits[2] = {{fd_, POLLIN, 0}, {error == 0 ? -1 : client, POLLOUT, 0}};
    const int n = poll(waits, 2, kLongestWaitMs);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error = n == 0 ? ETIMEDOUT : errno;
      break;
    }
    if (waits[1].revents != 0) {
      socklen_t length = sizeof(error);
      getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (waits[0].revents != 0 && !accept_one(client)) {
      error = errno;
      break;
    }
  }
  fcntl(client, F_SETFL, flags);
  if (error == 0) return 0;
  other_end_.reset();
  errno = error;
  return -1;
}

}  // namespace ckpt
