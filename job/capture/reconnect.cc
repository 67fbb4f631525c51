#include "job/capture/reconnect.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "base/protocol/reconnect_protocol.h"
#include "base/raii_fd.h"
#include "base/sockets/descriptor_message.h"
#include "base/sockets/local_peer.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/interpose/addresses/addresses.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// The sockets come from a process of the same host, which has them ready.
constexpr timeval kPatience{120, 0};

struct Work {
  uint64_t cookie;
  long error;
  int fd = -1;  // at which it failed
};

long call_maker(int fd, uint64_t cookie) {
  sockaddr_un address;
  const socklen_t length = reconnect_address(cookie, address);
  long r = connect_with_patience(fd, address, length, kPatience);
  if (r != 0) return r;
  uint32_t user = 0;
  r = user_of_peer(fd, user);
  if (r != 0) return r;
  return user != 0 && user != static_cast<uint32_t>(sys::call(__NR_geteuid)) ? -EPERM : 0;
}

// socket: what came with the order, or none.
long carry_out(const ReconnectOrder& order, ScopedFd socket) {
  using What = ReconnectOrder::What;
  long r = 0;
  switch (order.what) {
    case What::kUnwatch:
      // Another process that has the epoll as well may have done it, or the number has come to another file
      // since.
      sys::call(__NR_epoll_ctl, order.epoll, EPOLL_CTL_DEL, order.fd, nullptr);
      return 0;
    case What::kClose:
      sys::call(__NR_close, order.fd);
      return 0;
    case What::kPlace:
      if (!socket.valid()) return -EMFILE;
      // Closing the number before may have made it the next free one.
      if (socket.get() == order.fd) {
        r = sys::call(__NR_fcntl, order.fd, F_SETFD, long{order.value});
        if (r == 0) (void)socket.release();
        return r;
      }
      r = sys::call(__NR_dup3, socket.get(), order.fd, order.value != 0 ? O_CLOEXEC : 0);
      return r < 0 ? r : 0;
    case What::kWatch: {
      epoll_event event{};
      event.events = order.value;
      event.data.u64 = order.data;
      r = sys::call(__NR_epoll_ctl, order.epoll, EPOLL_CTL_ADD, order.fd, &event);
      return r == -EEXIST ? 0 : r;
    }
    case What::kEnd:
      break;
  }
  return -EINVAL;
}

long take_order(int fd, ReconnectOrder& order, ScopedFd& socket) {
  int received = -1;
  const long n = receive_descriptor(fd, &order, sizeof(order), &received);
  socket.reset(received);
  if (n < 0) return n;
  return n == sizeof(order) ? 0 : -EPIPE;
}

// By a thread of the program: it has the program's descriptors, and the agent has its own.
void reconnect_on_thread(void* argument) {
  auto& work = *static_cast<Work*>(argument);
  const long opened = sys::call(__NR_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0L);
  const ScopedFd maker(sys::failed(opened) ? -1 : static_cast<int>(opened));
  long r = maker.valid() ? call_maker(maker.get(), work.cookie) : opened;
  if (r != 0) {
    work.error = r;
    return;
  }
  ReconnectAnswer answer{static_cast<int32_t>(-work.error), -1};
  while (answer.error == 0) {
    ReconnectOrder order{};
    ScopedFd socket;
    r = take_order(maker.get(), order, socket);
    if (r == 0 && order.what == ReconnectOrder::What::kEnd) break;
    if (r == 0) r = carry_out(order, std::move(socket));
    if (r != 0) answer = {static_cast<int32_t>(-r), order.fd};
  }
  work.error = -answer.error;
  const long sent = sys::call(__NR_sendto, maker.get(), &answer, sizeof(answer), MSG_NOSIGNAL, 0L, 0L);
  if (work.error == 0 && sent != sizeof(answer)) work.error = sys::failed(sent) ? sent : -EPIPE;
}

}  // namespace

bool reconnect(uint64_t cookie) {
  if (stop_state.threads == nullptr) return false;
  Work work{cookie, 0};
  if (addresses::over_hosts) work.error = addresses::read(own_job.identity.directory);
  // One number more than the program has, for the conversation.
  rlimit64 limit{};
  const bool known = sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &limit) == 0;
  const rlimit64 most{limit.rlim_max, limit.rlim_max};
  if (known) sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, &most, 0L);
  stop_state.world.run_on(*stop_state.threads, &reconnect_on_thread, &work);
  if (known) sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, &limit, 0L);
  return work.error == 0;
}

}  // namespace ckpt::job
