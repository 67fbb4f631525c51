#include "job/session/connecting.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/clock.h"
#include "job/session/gate.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/stop/critical_section.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job::connecting {

constinit FutexWord held{0};

namespace {

constinit std::atomic<int64_t> until{0};  // CLOCK_MONOTONIC, ns; while `held`

int option(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  return sys::call(__NR_getsockopt, fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

// Not one that listens, is connected or is being connected.
bool is_to_be_connected(int fd) {
  const int domain = option(fd, SO_DOMAIN), type = option(fd, SO_TYPE);
  if (type != SOCK_STREAM && type != SOCK_SEQPACKET) return false;
  if (domain == AF_UNIX) {
    sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    return option(fd, SO_ACCEPTCONN) == 0 && sys::call(__NR_getpeername, fd, &peer, &size) != 0;
  }
  if (domain != AF_INET && domain != AF_INET6) return false;
  constexpr uint8_t kClosed = 7;  // a state of TCP: the first byte of tcp_info
  uint8_t state = kClosed;
  socklen_t size = sizeof(state);
  sys::call(__NR_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &state, &size);
  return state == kClosed;
}

// The call would not wait for a server, or not for ever.
bool has_limit(int fd) {
  timeval limit{};
  socklen_t size = sizeof(limit);
  const long flags = sys::call(__NR_fcntl, fd, F_GETFL, 0L);
  const long r = sys::call(__NR_getsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &size);
  return (flags > 0 && (flags & O_NONBLOCK) != 0) || r != 0 || limit.tv_sec != 0 || limit.tv_usec != 0;
}

void wait_limited() {
  const int64_t deadline = now_ns() + kMostOfLimitedNs;
  while (held.load(std::memory_order_acquire) != 0) {
    const int64_t left = deadline - now_ns();
    if (left <= 0) return;
    const timespec limit{0, left};
    futex_wait(held, 1, &limit);
  }
}

}  // namespace

bool wait_slowly(int fd) {
  know_child();
  // A filter may forbid what is asked here.
  if (seccomp_state.filtered.load(std::memory_order_relaxed) || !gate::is_here() ||
      critical_section::inside(sys::gettid()) || !is_to_be_connected(fd))
    return false;
  if (has_limit(fd)) {
    wait_limited();
    return false;
  }
  // Without a limit this ends by a signal just where connect would: not if its handler has SA_RESTART. A
  // program that has many signals is to be held as well.
  while (held.load(std::memory_order_acquire) != 0) {
    if (futex_wait(held, 1) != -EINTR) continue;
    wait_limited();
    return true;
  }
  return false;
}

void hold() {
  until.store(now_ns() + kMostNs, std::memory_order_relaxed);
  gate::shut(held);
}

void release() { gate::open(held); }

int64_t holds_until() { return until.load(std::memory_order_relaxed); }

bool is_holding() { return held.load(std::memory_order_relaxed) != 0; }

bool release_if_late() {
  if (!is_holding() || now_ns() < until.load(std::memory_order_relaxed)) return false;
  release();
  return true;
}

void reset() { held.store(0, std::memory_order_relaxed); }

}  // namespace ckpt::job::connecting
