// System V semaphores and messages, which no handler restarts.
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

// semop and semtimedop are no cancellation points.
CKPT_INTERPOSE(int, semop, int id, void* operations, size_t n) {
  return to_errno<int>(calls::semtimedop(id, operations, n, nullptr));
}

CKPT_INTERPOSE(int, semtimedop, int id, void* operations, size_t n, const timespec* timeout) {
  return to_errno<int>(calls::semtimedop(id, operations, n, timeout));
}

CKPT_INTERPOSE(int, msgsnd, int id, const void* message, size_t size, int flags) {
  CancellationPoint here;
  return to_errno<int>(calls::msgsnd(id, message, size, flags));
}

CKPT_INTERPOSE(ssize_t, msgrcv, int id, void* message, size_t size, long type, int flags) {
  CancellationPoint here;
  return to_errno(calls::msgrcv(id, message, size, type, flags));
}
