#include "libckpt_rt/interpose/system_v/system_v.h"

#include <sys/ipc.h>
#include <sys/msg.h>

#include "base/sys.h"
#include "libckpt_rt/capture/system_v/undo.h"
#include "libckpt_rt/capture/system_v/used_objects.h"
#include "libckpt_rt/core/threads/signals_blocked.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef SEM_STAT_ANY
#define SEM_STAT_ANY 20
#endif
#ifndef MSG_STAT_ANY
#define MSG_STAT_ANY 13
#endif

namespace ckpt::calls {

namespace {

using system_v::note_used;

// Commands whose `id` is an index into a table of the kernel, or means nothing.
bool lists_semaphores(int command) {
  return command == IPC_INFO || command == SEM_INFO || command == SEM_STAT || command == SEM_STAT_ANY;
}
bool lists_queues(int command) {
  return command == IPC_INFO || command == MSG_INFO || command == MSG_STAT || command == MSG_STAT_ANY;
}

// Operations that wait until `operations` could be made, and change nothing: the same, then all undone.
size_t make_waiting(const sembuf* operations, size_t n, sembuf* out) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    out[count] = operations[i];
    out[count++].sem_flg &= static_cast<short>(~SEM_UNDO);
  }
  for (size_t i = n; i-- > 0;) {
    if (operations[i].sem_op == 0) continue;
    out[count++] = {operations[i].sem_num, static_cast<short>(-operations[i].sem_op), 0};
  }
  return count;
}

// Operations with SEM_UNDO are made without waiting, so that no checkpoint comes between them and our list of
// debts (undo.h). If they would have to wait, this waits until they would not, by operations that change
// nothing, and tries again. room: for twice as many operations.
long semtimedop_with_undo(int id, const sembuf* operations, size_t n, const timespec* timeout, sembuf* room) {
  timespec limit{};
  if (timeout != nullptr) {
    if (!program_memory::read(limit, timeout)) return -EFAULT;
    timeout = &limit;
  }
  int64_t deadline_ns = 0;
  constexpr time_t kForEver = 1'000'000'000;  // longer is the same, and fits no deadline
  const bool ends = timeout != nullptr && timeout->tv_sec < kForEver;
  if (ends)
    deadline_ns = program_time(CLOCK_MONOTONIC) + int64_t{timeout->tv_sec} * 1'000'000'000 + timeout->tv_nsec;
  while (room != nullptr) {
    long r = system_v::operate(id, operations, n, timeout, room);
    if (r != -EAGAIN) return r;
    timespec left{};
    if (ends) {
      const int64_t left_ns = deadline_ns - program_time(CLOCK_MONOTONIC);
      if (left_ns > 0) left = {left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    }
    const size_t count = make_waiting(operations, n, room);
    r = calls::semtimedop(id, room, count, ends ? &left : nullptr);
    if (r == -E2BIG) break;
    if (r != 0) return r;
  }
  system_v::begin_unreckoned();
  const long r = calls::semtimedop(id, const_cast<sembuf*>(operations), n, timeout);
  system_v::end_unreckoned(r == 0);
  return r;
}

// The room lies on the thread's stack, which may be small: so the large one is used only where it is needed.
// The kernel takes at most kMost operations by default.
constexpr size_t kFew = 16, kMost = 500;

template <size_t kRoom>
[[gnu::noinline]] long with_room(int id, const sembuf* operations, size_t n, const timespec* timeout) {
  sembuf room[2 * kRoom];
  return semtimedop_with_undo(id, operations, n, timeout, room);
}

long semtimedop_undone(int id, const sembuf* operations, size_t n, const timespec* timeout) {
  if (n <= kFew) return with_room<kFew>(id, operations, n, timeout);
  if (n <= kMost) return with_room<kMost>(id, operations, n, timeout);
  return semtimedop_with_undo(id, operations, n, timeout, nullptr);
}

}  // namespace

// A checkpoint between call and note would not have the object.
long semget(int key, int count, int flags) {
  const SignalsBlocked here(SignalsBlocked::kButFaults);
  const long id = sys::call(__NR_semget, long{key}, long{count}, long{flags});
  if (id >= 0) note_used(SystemVKind::kSemaphores, static_cast<int>(id));
  return id;
}

long semctl(int id, int number, int command, long argument) {
  if (!lists_semaphores(command)) note_used(SystemVKind::kSemaphores, id);
  if (command == SETVAL || command == SETALL || command == IPC_RMID)
    return system_v::semctl_that_forgives(id, number, command, argument);
  return sys::call(__NR_semctl, long{id}, long{number}, long{command}, argument);
}

// Noted first: it may wait for ever.
long semtimedop_noted(int id, sembuf* operations, size_t n, const timespec* timeout) {
  note_used(SystemVKind::kSemaphores, id);
  constexpr size_t kMostOfAnyMachine = 32000;  // SEMOPM
  if (n <= kMostOfAnyMachine && program_memory::may_read(operations, n * sizeof(sembuf)) &&
      system_v::wants_undo(operations, n))
    return semtimedop_undone(id, operations, n, timeout);
  return calls::semtimedop(id, operations, n, timeout);
}

long msgget(int key, int flags) {
  const SignalsBlocked here(SignalsBlocked::kButFaults);
  const long id = sys::call(__NR_msgget, long{key}, long{flags});
  if (id >= 0) note_used(SystemVKind::kMessages, static_cast<int>(id));
  return id;
}

long msgctl(int id, int command, void* argument) {
  if (!lists_queues(command)) note_used(SystemVKind::kMessages, id);
  return sys::call(__NR_msgctl, long{id}, long{command}, argument);
}

long msgsnd_noted(int id, const void* message, size_t size, int flags) {
  note_used(SystemVKind::kMessages, id);
  return calls::msgsnd(id, message, size, flags);
}

long msgrcv_noted(int id, void* message, size_t size, long type, int flags) {
  note_used(SystemVKind::kMessages, id);
  return calls::msgrcv(id, message, size, type, flags);
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(int, semget, int key, int count, int flags) {
  return to_errno<int>(calls::semget(key, count, flags));
}

// libc's semctl takes a variable number of arguments; a fourth one is in the same register in either case.
CKPT_INTERPOSE(int, semctl, int id, int number, int command, long argument) {
  return to_errno<int>(calls::semctl(id, number, command, argument));
}

// semop and semtimedop are no cancellation points.
CKPT_INTERPOSE(int, semop, int id, void* operations, size_t n) {
  return to_errno<int>(calls::semtimedop_noted(id, static_cast<sembuf*>(operations), n, nullptr));
}

CKPT_INTERPOSE(int, semtimedop, int id, void* operations, size_t n, const timespec* timeout) {
  return to_errno<int>(calls::semtimedop_noted(id, static_cast<sembuf*>(operations), n, timeout));
}

CKPT_INTERPOSE(int, msgget, int key, int flags) { return to_errno<int>(calls::msgget(key, flags)); }

CKPT_INTERPOSE(int, msgctl, int id, int command, void* argument) {
  return to_errno<int>(calls::msgctl(id, command, argument));
}

CKPT_INTERPOSE(int, msgsnd, int id, const void* message, size_t size, int flags) {
  CancellationPoint here;
  return to_errno<int>(calls::msgsnd_noted(id, message, size, flags));
}

CKPT_INTERPOSE(ssize_t, msgrcv, int id, void* message, size_t size, long type, int flags) {
  CancellationPoint here;
  return to_errno(calls::msgrcv_noted(id, message, size, type, flags));
}
