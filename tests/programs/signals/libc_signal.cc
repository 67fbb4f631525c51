#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/programs/signals/signals.h"

namespace signals {

using namespace victim;

namespace {

constexpr long kSetxid = 33;  // libc's own, by which it changes the ids of all threads
constexpr uint64_t kRestorer = 0x04000000;

struct KernelAction {
  void (*handler)(int, siginfo_t*, void*);
  uint64_t flags;
  void (*restorer)();
  uint64_t mask;
};

// As libc makes its own calls: not by its functions, for which this signal does not exist.
long call(long number, long a, const void* b, void* c) {
  long result;
  register long size asm("r10") = sizeof(uint64_t);
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(size)
               : "rcx", "r11", "memory");
  return result;
}

extern "C" void return_from_setxid();
asm(".type return_from_setxid, @function\nreturn_from_setxid:\n  mov $15, %eax\n  syscall\n");

void one(int, siginfo_t*, void*) {}
void other(int, siginfo_t* info, void*) { (void)info->si_code; }
void on_expiry(sigval) {}

void set_handler_of_libc(void (*handler)(int, siginfo_t*, void*)) {
  const KernelAction action{handler, SA_SIGINFO | kRestorer, return_from_setxid, 0};
  require(call(SYS_rt_sigaction, kSetxid, &action, nullptr) == 0, "libc's signal: no handler can be set");
}

void nap() {
  const timespec time{0, 200'000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

}  // namespace

// Behaves as a libc would that sets its handler whenever it needs it, with all signals blocked as in
// pthread_create. The thread that libc keeps for timers has all but libc's own signals blocked: a stop
// borrows this one for it, perhaps just before the thread here sets another handler and stops in its turn.
// Afterwards the newest handler is there, not the one that was borrowed from.
std::string handler_of_libc(uint64_t iterations) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = on_expiry;
  timer_t timer{};
  require_call(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  constexpr int64_t kBlockedNs = 8'000'000;
  const uint64_t all = ~uint64_t{0};
  for (uint64_t n = 0; n < iterations; ++n) {
    uint64_t before = 0;
    set_handler_of_libc(one);
    require(call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before) == 0, "libc's signal: no mask can be set");
    for (const int64_t end = now_ns() + kBlockedNs; now_ns() < end;) {
    }
    set_handler_of_libc(other);
    require(call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr) == 0,
            "libc's signal: no mask can be set");
    KernelAction found{};
    constexpr int kPatience = 200'000;  // naps: while it is borrowed, another one is there
    for (int i = 0; i < kPatience; ++i) {
      require(call(SYS_rt_sigaction, kSetxid, nullptr, &found) == 0,
              "libc's signal: its handler cannot be read");
      if (found.handler == other) break;
      nap();
    }
    require(found.handler == other, "libc's signal: its newest handler was replaced by an older one");
  }
  require_call(timer_delete(timer) == 0, "timer_delete");
  return fmt::format("{} handlers", 2 * iterations);
}

}  // namespace signals
