#include "guest.h"

#include <fcntl.h>
#include <time.h>

#include "base/protocol/restart_protocol.h"
#include "base/sys.h"

namespace ckpt {
namespace {

using sys::call;

void put(const char* text, long n) {
  while (n > 0) {
    long r = call(__NR_write, 1, text, n);
    if (r <= 0) return;
    text += r;
    n -= r;
  }
}

long length_of(const char* text) {
  long n = 0;
  while (text[n] != '\0') ++n;
  return n;
}

void put_fact(const char* name, long value) {
  char text[24];
  int at = sizeof(text);
  bool negative = value < 0;
  unsigned long v = negative ? 0ul - static_cast<unsigned long>(value) : static_cast<unsigned long>(value);
  do {
    text[--at] = static_cast<char>('0' + v % 10);
    v /= 10;
  } while (v != 0);
  if (negative) text[--at] = '-';
  put(name, length_of(name));
  put(" ", 1);
  put(text + at, static_cast<long>(sizeof(text)) - at);
  put(" ", 1);
}

void cat(const char* path) {
  char buffer[512];
  long fd = call(__NR_openat, AT_FDCWD, path, O_RDONLY, 0);
  for (;;) {
    long n = call(__NR_read, fd, buffer, sizeof(buffer));
    if (n <= 0) break;
    put(buffer, n);
  }
  call(__NR_close, fd);
}

long ns_of(const timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; }

void go(const RestartArgs* a) {
  int fd = a->status_fd;
  RestartStatus status{static_cast<uint32_t>(RestartStage::kGo), 0, 0, 0};
  call(__NR_write, fd, &status, sizeof(status));
  call(__NR_close, fd);
}

}  // namespace

extern "C" [[noreturn, gnu::section(".text.entry")]] void restorer_main(const RestartArgs* a) {
  auto* step = reinterpret_cast<const GuestStep*>(a->restart_state);
  for (;; ++step) {
    switch (step->op) {
      case GuestOp::kCat:
        cat(reinterpret_cast<const char*>(step->address));
        break;
      case GuestOp::kDump:
        put(reinterpret_cast<const char*>(step->address), static_cast<long>(step->length));
        break;
      case GuestOp::kText:
        put(reinterpret_cast<const char*>(step->address),
            length_of(reinterpret_cast<const char*>(step->address)));
        break;
      case GuestOp::kFacts: {
        timespec now{};
        call(__NR_clock_gettime, CLOCK_MONOTONIC, &now);
        put_fact("pid", call(__NR_getpid));
        put_fact("tid", call(__NR_gettid));
        put_fact("monotonic", ns_of(now));
        put_fact("shift", a->monotonic_shift_ns);
        put_fact("uid", call(__NR_getuid));
        put_fact("euid", call(__NR_geteuid));
        put_fact("stack_aligned", reinterpret_cast<uint64_t>(__builtin_frame_address(0)) % 16 == 0);
        put("\n", 1);
        break;
      }
      case GuestOp::kKill:
        call(__NR_kill, call(__NR_getpid), step->value);
        break;
      case GuestOp::kWait: {
        char byte;
        call(__NR_read, 0, &byte, 1);
        break;
      }
      case GuestOp::kStore:
        *reinterpret_cast<volatile char*>(step->address) = static_cast<char>(step->value);
        break;
      case GuestOp::kGo:
        go(a);
        break;
      case GuestOp::kSleep: {
        timespec pause{step->value / 1000, step->value % 1000 * 1'000'000};
        call(__NR_nanosleep, &pause, 0L);
        break;
      }
      case GuestOp::kClock: {
        timespec before{}, now{}, behind{};
        auto clock = reinterpret_cast<int (*)(int, timespec*)>(step->address);
        call(__NR_clock_gettime, CLOCK_MONOTONIC, &before);
        int r = clock(CLOCK_MONOTONIC, &now);
        call(__NR_clock_gettime, CLOCK_MONOTONIC, &behind);
        put_fact("vdso", r == 0 && ns_of(before) <= ns_of(now) && ns_of(now) <= ns_of(behind));
        put("\n", 1);
        break;
      }
      case GuestOp::kEnd:
        for (;;) call(__NR_exit_group, step->value);
    }
  }
}

}  // namespace ckpt
