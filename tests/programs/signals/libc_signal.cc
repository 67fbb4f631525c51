#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "tests/programs/signals/signals.h"

namespace signals {

using namespace victim;

namespace {

constexpr int kSetxid = 33;  // libc's own, by which it changes the ids of all threads
constexpr uint64_t kSiginfo = SA_SIGINFO, kRestorer = 0x04000000;

struct KernelAction {
  void (*handler)(int, siginfo_t*, void*);
  uint64_t flags;
  void (*restorer)();
  uint64_t mask;
};

// Not libc's function, for which this signal does not exist.
long set_action(const KernelAction* action, KernelAction* old) {
  long result;
  register long size asm("r10") = sizeof(uint64_t);
  asm volatile("syscall"
               : "=a"(result)
               : "a"(SYS_rt_sigaction), "D"(long{kSetxid}), "S"(action), "d"(old), "r"(size)
               : "rcx", "r11", "memory");
  return result;
}

extern "C" void return_from_setxid();
asm(".type return_from_setxid, @function\nreturn_from_setxid:\n  mov $15, %eax\n  syscall\n");

void one(int, siginfo_t*, void*) {}
void other(int, siginfo_t* info, void*) { (void)info->si_code; }

void on_expiry(sigval) {}

void nap() {
  const timespec time{0, 200'000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

}  // namespace

// Behaves as a libc would that sets its handler whenever it needs it. The thread that libc keeps for timers has all signals but libc's
// blocked, so a stop borrows this one for a moment: afterwards the program's newest handler is there.
std::string handler_of_libc(uint64_t iterations) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = on_expiry;
  timer_t timer{};
  require_call(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  for (uint64_t n = 0; n < iterations; ++n) {
    const KernelAction mine{n % 2 == 0 ? one : other, kSiginfo | kRestorer, return_from_setxid, 0};
    require(set_action(&mine, nullptr) == 0, "libc's signal: no handler can be set");
    nap();
    KernelAction found{};
    constexpr int kPatience = 10'000;  // naps: while it is borrowed another one is there
    for (int i = 0; i < kPatience; ++i, nap()) {
      require(set_action(nullptr, &found) == 0, "libc's signal: its handler cannot be read");
      if (found.handler == mine.handler) break;
    }
    require(found.handler == mine.handler, "libc's signal: handler {} was replaced by an older one", n);
  }
  require_call(timer_delete(timer) == 0, "timer_delete");
  return fmt::format("{} handlers", iterations);
}

}  // namespace signals
