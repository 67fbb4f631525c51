// The functions of liburing that wait: in system call instructions of its own, which would end with EINTR at
// each checkpoint. Requests that they were to submit are still there when that is their result.
#include <errno.h>
#include <liburing.h>
#include <time.h>

#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/rings/liburing_function.h"
#include "libckpt_rt/interpose/waits/library_wait.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

static_assert(sizeof(timespec) == sizeof(__kernel_timespec));

template <typename Call>
int wait_in_liburing(const __kernel_timespec* timeout, Call&& call) {
  int result = 0;
  wait_on(reinterpret_cast<const timespec*>(timeout), [&](timespec* left) {
    result = call(reinterpret_cast<__kernel_timespec*>(left));
    return result == -EINTR;
  });
  return result;
}

}  // namespace

CKPT_INTERPOSE(int, __io_uring_get_cqe, io_uring* ring, io_uring_cqe** taken, unsigned submit, unsigned await,
               void* mask) {
  static constinit LiburingFunction real("__io_uring_get_cqe");
  return wait_in_liburing(
      nullptr, [&](__kernel_timespec*) { return real.call<int>(ring, taken, submit, await, mask); });
}

CKPT_INTERPOSE(int, io_uring_submit_and_wait, io_uring* ring, unsigned await) {
  static constinit LiburingFunction real("io_uring_submit_and_wait");
  return wait_in_liburing(nullptr, [&](__kernel_timespec*) { return real.call<int>(ring, await); });
}

CKPT_INTERPOSE(int, io_uring_wait_cqes, io_uring* ring, io_uring_cqe** taken, unsigned await,
               __kernel_timespec* timeout, void* mask) {
  static constinit LiburingFunction real("io_uring_wait_cqes");
  return wait_in_liburing(
      timeout, [&](__kernel_timespec* left) { return real.call<int>(ring, taken, await, left, mask); });
}

CKPT_INTERPOSE(int, io_uring_wait_cqe_timeout, io_uring* ring, io_uring_cqe** taken,
               __kernel_timespec* timeout) {
  static constinit LiburingFunction real("io_uring_wait_cqe_timeout");
  return wait_in_liburing(timeout,
                          [&](__kernel_timespec* left) { return real.call<int>(ring, taken, left); });
}

CKPT_INTERPOSE(int, io_uring_submit_and_wait_timeout, io_uring* ring, io_uring_cqe** taken, unsigned await,
               __kernel_timespec* timeout, void* mask) {
  static constinit LiburingFunction real("io_uring_submit_and_wait_timeout");
  return wait_in_liburing(
      timeout, [&](__kernel_timespec* left) { return real.call<int>(ring, taken, await, left, mask); });
}
