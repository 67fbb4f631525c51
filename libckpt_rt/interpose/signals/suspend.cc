// aio_suspend and gai_suspend: they wait inside libc.
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/interpose/waits/library_wait.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, aio_suspend, const void* const* list, int n, const timespec* timeout) {
  using Real = int(const void* const*, int, const timespec*);
  Real* real = real_function(RealFunction::kAioSuspend).as<Real>();
  int r = -1;
  wait_on(timeout, [&](const timespec* left) {
    r = real(list, n, left);
    return r != 0 && errno == EINTR;
  });
  return r;
}
CKPT_INTERPOSE_ALIAS(aio_suspend, aio_suspend64);

// Returns EAI_INTR instead of setting errno.
CKPT_INTERPOSE(int, gai_suspend, const void* const* list, int n, const timespec* timeout) {
  using Real = int(const void* const*, int, const timespec*);
  constexpr int kEaiIntr = -104;
  Real* real = real_function(RealFunction::kGaiSuspend).as<Real>();
  int r = -1;
  wait_on(timeout, [&](const timespec* left) {
    r = real(list, n, left);
    return r == kEaiIntr;
  });
  return r;
}
