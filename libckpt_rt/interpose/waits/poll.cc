// Waiting for descriptors: poll, select, epoll and their kin.
#include <sys/select.h>
#include <sys/time.h>

#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, poll, pollfd* fds, unsigned long n, int milliseconds) {
  CancellationPoint here;
  return to_errno<int>(calls::poll(fds, n, milliseconds));
}
CKPT_INTERPOSE_ALIAS(poll, __poll);

CKPT_INTERPOSE(int, ppoll, pollfd* fds, unsigned long n, const timespec* timeout, const sigset_t* mask) {
  CancellationPoint here;
  timespec copy = timeout != nullptr ? *timeout : timespec{};
  return to_errno<int>(calls::ppoll(fds, n, timeout != nullptr ? &copy : nullptr, mask));
}

CKPT_INTERPOSE(int, __poll_chk, pollfd* fds, unsigned long n, int milliseconds, size_t bytes) {
  if (bytes / sizeof(pollfd) < n) __chk_fail();
  return ckpt_libc_poll(fds, n, milliseconds);
}

CKPT_INTERPOSE(int, __ppoll_chk, pollfd* fds, unsigned long n, const timespec* timeout, const sigset_t* mask,
               size_t bytes) {
  if (bytes / sizeof(pollfd) < n) __chk_fail();
  return ckpt_libc_ppoll(fds, n, timeout, mask);
}

// Linux writes what remains into *timeout.
CKPT_INTERPOSE(int, select, int n, fd_set* in, fd_set* out, fd_set* except, timeval* timeout) {
  timespec limit{};
  if (timeout != nullptr && !calls::to_timespec(*timeout, limit)) return to_errno<int>(-EINVAL);
  CancellationPoint here;
  long r = calls::pselect6(n, in, out, except, timeout != nullptr ? &limit : nullptr, nullptr);
  if (timeout != nullptr) *timeout = {limit.tv_sec, limit.tv_nsec / 1000};
  return to_errno<int>(r);
}
CKPT_INTERPOSE_ALIAS(select, __select);

CKPT_INTERPOSE(int, pselect, int n, fd_set* in, fd_set* out, fd_set* except, const timespec* timeout,
               const sigset_t* mask) {
  CancellationPoint here;
  timespec copy = timeout != nullptr ? *timeout : timespec{};
  return to_errno<int>(calls::pselect6(n, in, out, except, timeout != nullptr ? &copy : nullptr, mask));
}

CKPT_INTERPOSE(int, epoll_wait, int fd, void* events, int n, int milliseconds) {
  CancellationPoint here;
  return to_errno<int>(calls::epoll_wait(fd, events, n, milliseconds));
}

CKPT_INTERPOSE(int, epoll_pwait, int fd, void* events, int n, int milliseconds, const sigset_t* mask) {
  CancellationPoint here;
  return to_errno<int>(calls::epoll_pwait(fd, events, n, milliseconds, mask));
}

CKPT_INTERPOSE(int, epoll_pwait2, int fd, void* events, int n, const timespec* timeout,
               const sigset_t* mask) {
  CancellationPoint here;
  return to_errno<int>(calls::epoll_pwait2(fd, events, n, timeout, mask));
}
