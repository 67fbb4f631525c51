#include "libckpt_rt/capture/system_v/kernel_undo.h"

#include <errno.h>
#include <sys/ipc.h>
#include <sys/sem.h>

#include <cstddef>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::system_v {

namespace {

constexpr int32_t kMostValue = 32767;    // SEMVMX
constexpr int32_t kLeastUndo = -32768;   // -SEMAEM - 1
constexpr int32_t kStep = 16383;         // fits above or below every value
constexpr uint32_t kAllUndo = 1u << 16;  // how many values the kernel may have to undo

// As if `amount` had been added to the semaphore with SEM_UNDO, and taken from it without: the semaphore is
// as before, and what is to be undone is less by the amount. Then an operation that would have to wait, for
// the semaphore is at least 1 there. So nothing of all this is made. The error tells how far the kernel came.
long pretend(int id, uint16_t number, uint16_t value_now, uint32_t amount) {
  constexpr short kNoWait = IPC_NOWAIT, kUndone = IPC_NOWAIT | SEM_UNDO;
  const bool is_low = value_now <= kMostValue / 2;
  sembuf operations[2 * (kAllUndo / kStep + 1) + 2];
  size_t n = 0;
  for (uint32_t left = amount; left != 0;) {
    const auto step = static_cast<short>(left < kStep ? left : kStep);
    const sembuf up{number, step, kUndone}, down{number, static_cast<short>(-step), kNoWait};
    operations[n++] = is_low ? up : down;
    operations[n++] = is_low ? down : up;
    left -= static_cast<uint32_t>(step);
  }
  if (is_low) operations[n++] = {number, 1, kNoWait};
  operations[n++] = {number, 0, kNoWait};
  return sys::call(__NR_semtimedop, long{id}, operations, n, 0L);
}

}  // namespace

KernelUndo ask_kernel_undo(int id, uint16_t number, uint16_t value_now) {
  // Between what the kernel takes and what it refuses. More than all it must refuse.
  uint32_t taken = 0, refused = kAllUndo;
  if (pretend(id, number, value_now, refused) != -ERANGE) return {};
  while (refused - taken > 1) {
    const uint32_t middle = taken + (refused - taken) / 2;
    const long r = pretend(id, number, value_now, middle);
    if (r != -ERANGE && r != -EAGAIN) return {};
    (r == -ERANGE ? refused : taken) = middle;
  }
  const long value_then = sys::call(__NR_semctl, long{id}, long{number}, long{GETVAL}, 0L);
  if (value_then != value_now) return {};
  return {true, kLeastUndo + static_cast<int32_t>(taken)};
}

}  // namespace ckpt::system_v
