#include <asm/ldt.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cfenv>
#include <cmath>

#include "tests/programs/registers/registers.h"

namespace registers {

using namespace victim;

namespace {
constexpr uint64_t kSteps = 1'000'000;  // the loop counts down this often without touching memory
}

// Eleven registers hold known values while the twelfth counts; carry and direction flags are known too.
std::string general(uint64_t iterations) {
  for (uint64_t n = 0; n < iterations; ++n) {
    uint64_t got[11];
    asm volatile(
        "mov %[n], %%rax\n\t"
        "lea 1(%%rax), %%rbx\n\t"
        "lea 2(%%rax), %%rcx\n\t"
        "lea 3(%%rax), %%rdx\n\t"
        "lea 4(%%rax), %%rsi\n\t"
        "lea 5(%%rax), %%r8\n\t"
        "lea 6(%%rax), %%r9\n\t"
        "lea 7(%%rax), %%r10\n\t"
        "lea 8(%%rax), %%r11\n\t"
        "lea 9(%%rax), %%r12\n\t"
        "lea 10(%%rax), %%r13\n\t"
        "mov %[steps], %%r14\n\t"
        "stc\n"
        "1:\n\t"
        "dec %%r14\n\t"  // leaves the carry flag alone
        "jnz 1b\n\t"
        "adc $0, %%rax\n\t"  // + 1 from the carry that was set before the loop
        "mov %%rax, (%[got])\n\t"
        "mov %%rbx, 8(%[got])\n\t"
        "mov %%rcx, 16(%[got])\n\t"
        "mov %%rdx, 24(%[got])\n\t"
        "mov %%rsi, 32(%[got])\n\t"
        "mov %%r8, 40(%[got])\n\t"
        "mov %%r9, 48(%[got])\n\t"
        "mov %%r10, 56(%[got])\n\t"
        "mov %%r11, 64(%[got])\n\t"
        "mov %%r12, 72(%[got])\n\t"
        "mov %%r13, 80(%[got])\n\t"
        :
        : [n] "r"(n), [steps] "i"(kSteps), [got] "D"(got)
        : "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "cc", "memory");
    require(got[0] == n + 1, "general: rax holds {}, not {}", got[0], n + 1);
    for (uint64_t i = 1; i < 11; ++i)
      require(got[i] == n + i, "general: register {} holds {}, not {}", i, got[i], n + i);
  }
  return fmt::format("{} rounds", iterations);
}

// Eight values on the x87 stack, in extended precision, with a control word of its own.
std::string x87(uint64_t iterations) {
  const uint16_t control = 0x0f7f;  // round towards zero, 64-bit mantissa, all exceptions masked
  for (uint64_t n = 0; n < iterations; ++n) {
    uint16_t control_before, control_after;
    int64_t start = static_cast<int64_t>(n);
    int64_t got[8];
    asm volatile(
        "fnstcw %[before]\n\t"
        "fldcw %[control]\n\t"
        "fildll %[start]\n\t"
        "fld1\n\tfadd %%st(1), %%st\n\t"
        "fld1\n\tfadd %%st(1), %%st\n\t"
        "fld1\n\tfadd %%st(1), %%st\n\t"
        "fld1\n\tfadd %%st(1), %%st\n\t"
        "fld1\n\tfadd %%st(1), %%st\n\t"
        "fld1\n\tfadd %%st(1), %%st\n\t"
        "fld1\n\tfadd %%st(1), %%st\n\t"
        "mov %[steps], %%rcx\n"
        "1:\n\t"
        "dec %%rcx\n\t"
        "jnz 1b\n\t"
        "fnstcw %[after]\n\t"
        "fistpll 56(%[got])\n\tfistpll 48(%[got])\n\tfistpll 40(%[got])\n\tfistpll 32(%[got])\n\t"
        "fistpll 24(%[got])\n\tfistpll 16(%[got])\n\tfistpll 8(%[got])\n\tfistpll (%[got])\n\t"
        "fldcw %[before]\n\t"
        : [before] "=m"(control_before), [after] "=m"(control_after)
        : [control] "m"(control), [start] "m"(start), [steps] "i"(kSteps), [got] "r"(got)
        : "rcx", "cc", "memory", "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)");
    require(control_after == control, "x87: the control word is {:x}, not {:x}", control_after, control);
    for (int64_t i = 0; i < 8; ++i)
      require(got[i] == start + i, "x87: st holds {}, not {}", got[i], start + i);
  }
  return fmt::format("{} rounds", iterations);
}

// Each thread rounds its own way; 1/3 and its like tell which way was used.
std::string rounding(uint64_t iterations) {
  const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  run_threads(4, [&](unsigned t) {
    require(std::fesetround(modes[t]) == 0, "rounding: fesetround");
    volatile double one = 1, three = 3, minus = -1;
    volatile long double long_one = 1, long_three = 3;
    const double third = one / three, minus_third = minus / three;
    const long double long_third = long_one / long_three;
    for (uint64_t n = 0; n < iterations; ++n) {
      require(one / three == third && minus / three == minus_third && long_one / long_three == long_third,
              "rounding: thread {} rounds another way in step {}", t, n);
      if (n % 64 == 0)
        require(std::fegetround() == modes[t], "rounding: mode of thread {} is {:x}", t, std::fegetround());
    }
    std::fesetround(FE_TONEAREST);
  });
  return fmt::format("{} divisions in four modes", 4 * iterations);
}

// Each thread has a segment of its own in DS, ES and GS (modify_ldt), and may not read the time-stamp
// counter.
std::string segments(uint64_t iterations) {
  run_threads(2, [&](unsigned t) {
    user_desc own{};
    own.entry_number = 40 + t;
    own.limit = 0x1234 + t;
    own.limit_in_pages = own.seg_32bit = own.useable = 1;
    const bool has_table =
        syscall(SYS_modify_ldt, 0x11, &own, sizeof(own)) == 0;  // else this kernel has none
    const uint16_t selector = has_table ? static_cast<uint16_t>(own.entry_number << 3 | 7) : 0;
    const uint64_t limit = has_table ? ((own.limit + 1ull) << 12) - 1 : 0;
    asm volatile("mov %0, %%ds\n\tmov %0, %%es\n\tmov %0, %%gs" : : "r"(selector));
    require(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0, "segments: PR_SET_TSC");
    int pair[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "segments: socketpair");
    // Nothing here asks for the time: libc reads it from the counter. Nor may who is in its calls that wait.
    for (uint64_t n = 0; n < iterations; ++n) {
      uint16_t data, extra, other;
      uint64_t seen = 0;
      asm volatile("mov %%ds, %0\n\tmov %%es, %1\n\tmov %%gs, %2" : "=r"(data), "=r"(extra), "=r"(other));
      if (has_table) asm volatile("lsl %1, %0" : "+r"(seen) : "r"(uint64_t{selector}) : "cc");
      int counter = 0;
      if (n % 64 == 0) prctl(PR_GET_TSC, &counter);
      if (n % 512 == 0) {
        poll(nullptr, 0, 1);
        char byte = static_cast<char>(n / 512);
        require(send(pair[0], &byte, 1, 0) == 1 && recv(pair[1], &byte, 1, 0) == 1, "segments: a byte");
      }
      if (data == selector && extra == selector && other == selector && seen == limit &&
          (n % 64 != 0 || counter == PR_TSC_SIGSEGV))
        continue;
      prctl(PR_SET_TSC, PR_TSC_ENABLE);
      require(false, "segments: thread {} has {:x}, {:x}, {:x}, limit {:x}, counter {} in step {}", t, data,
              extra, other, seen, counter, n);
    }
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
    close(pair[0]);
    close(pair[1]);
    asm volatile("mov %0, %%ds\n\tmov %0, %%es\n\tmov %0, %%gs" : : "r"(0));
  });
  return fmt::format("{} looks at two segments", iterations);
}

}  // namespace registers
