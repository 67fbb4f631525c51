// The program of the made-up images in these tests: freestanding code that stands where libckpt_rt's
// restart entry would be, tells what it finds, and ends.
//
// Owner: tests/restart_unit. guest.cc is linked to address 0 and put into an image's mapping.
#pragma once

#include <cstdint>

namespace ckpt {

enum class GuestOp : uint32_t {
  kEnd = 0,     // exit_group(value)
  kCat = 1,     // the file named at `address`, to descriptor 1
  kDump = 2,    // `length` bytes at `address`
  kText = 3,    // the text at `address`
  kFacts = 4,   // "pid 1 tid 2 monotonic 3 shift 4 uid 5 euid 6\n"
  kKill = 5,    // kill(getpid(), value)
  kWait = 6,    // read one byte from descriptor 0
  kStore = 7,   // the byte `value` to `address`
  kGo = 8,      // what the library does: unmap the restorer, report kGo, close the status pipe
  kSleep = 10,  // value milliseconds
  kClock = 9,   // calls the vdso's clock_gettime at `address`, "vdso 1\n" when it works
};

struct GuestStep {
  GuestOp op;
  uint32_t value;
  uint64_t address, length;
};

}  // namespace ckpt
