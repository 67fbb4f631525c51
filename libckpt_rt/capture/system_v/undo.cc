#include "libckpt_rt/capture/system_v/undo.h"

#include <errno.h>
#include <time.h>

#include <atomic>
#include <cstring>

#include "base/locks/lock_ranks.h"
#include "base/sys.h"
#include "base/units.h"
#include "libckpt_rt/capture/system_v/used_objects.h"
#include "libckpt_rt/core/threads/signals_blocked.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::system_v {

namespace {

constexpr size_t kMostDebts = 256;

struct List {
  int owner = 0;            // pid
  bool unknown = false;     // of a debt for which there was no place
  uint32_t unreckoned = 0;  // calls that are under way, or have been made
  Debt debts[kMostDebts]{};
};
constinit List list{};
constinit std::atomic<int> holder{0};  // pid of the process of which a thread is inside

// Alone with the list, and without a signal.
class Undisturbed {
 public:
  Undisturbed() {
    lock_ranks::takes(LockRank::kDebts);
    pid_ = sys::getpid();
    for (int there = 0; !holder.compare_exchange_strong(there, pid_, std::memory_order_acquire);) {
      if (there == pid_) {
        constexpr timespec kMoment{0, 20'000};
        sys::call(__NR_nanosleep, &kMoment, 0L);
        there = 0;
      }
      // Else it is a thread of the parent, which is not here: taken from it.
    }
    if (list.owner != pid_) {
      for (Debt& d : list.debts) d = {};
      list.unknown = false;
      list.unreckoned = 0;
      list.owner = pid_;
    }
  }
  ~Undisturbed() {
    holder.store(0, std::memory_order_release);
    lock_ranks::released(LockRank::kDebts);
  }
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  const SignalsBlocked blocked_{SignalsBlocked::kButFaults};
  int pid_ = 0;
};

// As the kernel notes when a set was changed.
int64_t second() {
  timespec now{};
  sys::call(__NR_clock_gettime, long{CLOCK_REALTIME_COARSE}, &now);
  return now.tv_sec;
}

Debt* find(int id, uint16_t number) {
  Debt* free = nullptr;
  for (Debt& d : list.debts) {
    if (d.id == id && d.number == number) return &d;
    if (d.value == 0 && free == nullptr) free = &d;
  }
  for (size_t i = 0; free == nullptr && i < kMostDebts; ++i) {
    if (!exists(SystemVKind::kSemaphores, list.debts[i].id)) free = &list.debts[i];
  }
  if (free != nullptr) *free = {id, number, 0, 0};
  return free;
}

void owe(int id, const sembuf& operation) {
  Debt* debt = find(id, operation.sem_num);
  if (debt == nullptr) {
    list.unknown = true;
    return;
  }
  if (debt->value == 0) debt->since_s = second();
  debt->value -= operation.sem_op;
}

}  // namespace

bool wants_undo(const sembuf* operations, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if ((operations[i].sem_flg & SEM_UNDO) != 0) return true;
  }
  return false;
}

long operate(int id, const sembuf* operations, size_t n, const timespec* timeout, sembuf* now) {
  for (size_t i = 0; i < n; ++i) {
    now[i] = operations[i];
    now[i].sem_flg |= IPC_NOWAIT;
  }
  const Undisturbed here;
  const long r = sys::call(__NR_semtimedop, long{id}, now, n, timeout);
  for (size_t i = 0; r == 0 && i < n; ++i) {
    if ((now[i].sem_flg & SEM_UNDO) != 0) owe(id, now[i]);
  }
  return r;
}

void begin_unreckoned() {
  const Undisturbed here;
  ++list.unreckoned;
}

void end_unreckoned(bool made) {
  const Undisturbed here;
  if (!made) --list.unreckoned;
}

long semctl_that_forgives(int id, int number, int command, long argument) {
  const Undisturbed here;
  const long r = sys::call(__NR_semctl, long{id}, long{number}, long{command}, argument);
  if (r < 0) return r;
  for (Debt& d : list.debts) {
    if (d.id == id && (command != SETVAL || d.number == number)) d.value = 0;
  }
  return r;
}

std::span<const Debt> debts(int pid) {
  return list.owner == pid ? std::span<const Debt>(list.debts) : std::span<const Debt>();
}

bool are_debts_unknown(int pid) { return list.owner == pid && (list.unknown || list.unreckoned != 0); }

bool may_be_forgiven(const Debt& debt, int64_t changed_s) {
  return debt.since_s != 0 && changed_s >= debt.since_s;
}

void settle(const Debt& debt, int32_t value) {
  Debt& d = list.debts[&debt - list.debts];
  d.value = value;
  d.since_s = second();
}

// Up and down again, of which the kernel is to undo one half: the value stays.
long owe_again(int pid) {
  const int64_t now_s = second();
  for (Debt& d : list.debts) {
    if (list.owner != pid) break;
    d.since_s = now_s;
    if (d.value == 0 || !exists(SystemVKind::kSemaphores, d.id)) continue;
    const auto amount = static_cast<short>(d.value < 0 ? -d.value : d.value);
    const short up_undo = d.value < 0 ? SEM_UNDO : 0, down_undo = d.value < 0 ? 0 : SEM_UNDO;
    const sembuf up{d.number, amount, static_cast<short>(up_undo | IPC_NOWAIT)},
        down{d.number, static_cast<short>(-amount), static_cast<short>(down_undo | IPC_NOWAIT)};
    sembuf both[2] = {up, down};
    long r = sys::call(__NR_semtimedop, long{d.id}, both, 2L, 0L);
    if (r == -ERANGE) {
      both[0] = down;
      both[1] = up;
      r = sys::call(__NR_semtimedop, long{d.id}, both, 2L, 0L);
    }
    if (r != 0) return r;
  }
  return 0;
}

}  // namespace ckpt::system_v
