// What all processes of a job that goes back in place have in common: one word that decides for all, and how
// far each has come (docs/back.md). A page or more of a memfd that `ckpt back` makes.
//
// Owner:     `ckpt back`. Callers: the agents of the processes, and `ckpt back`. Waits are not private: the
//            memory is of several processes.
// Who is alive: `ckpt back` locks byte i of the memfd for process i (F_OFD_SETLK), by an open file that it
// then hands to that process's agent alone. The lock is free when the process is gone.
// Never:     allocates, touches errno. The decision: kOpen to kGivenUp or kCutting; kCutting to kCommitted,
//            or to kGivenUp if no file was cut. Nothing else follows kGivenUp and kCommitted.
#pragma once

#include <linux/futex.h>
#include <time.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "base/sys.h"

namespace ckpt {

inline constexpr uint64_t kBackGateBytes = 64 << 10;
inline constexpr uint32_t kMostBackMembers = 8000;

enum class BackDecision : uint32_t {
  kOpen = 0,
  kGivenUp = 1,    // all go on as they were
  kCutting = 2,    // files are cut: a failure ends the job
  kCommitted = 3,  // the same
};

struct BackGate {
  std::atomic<uint32_t> decision;  // BackDecision
  std::atomic<uint32_t> failed;    // 1: the job ends. Set by a process that cannot go on
  std::atomic<uint32_t> turns;     // changes with everything below
  uint32_t members;
  std::atomic<uint32_t> passed[kMostBackMembers];  // how many barriers each has come to

  bool decide(BackDecision from, BackDecision to) {
    auto expected = static_cast<uint32_t>(from);
    const bool done = decision.compare_exchange_strong(expected, static_cast<uint32_t>(to));
    wake();
    return done;
  }
  BackDecision decided() const { return static_cast<BackDecision>(decision.load()); }
  void fail() {
    failed.store(1);
    wake();
  }
  void come_to(uint32_t member, uint32_t barrier) {
    passed[member].store(barrier);
    wake();
  }
  bool all_at(uint32_t barrier) const {
    for (uint32_t i = 0; i < members; ++i) {
      if (passed[i].load() < barrier) return false;
    }
    return true;
  }
  void wake() {
    turns.fetch_add(1);
    sys::call(__NR_futex, &turns, FUTEX_WAKE, INT_MAX, 0L, 0L, 0L);
  }
  void wait(uint32_t seen, const timespec& longest) {
    sys::call(__NR_futex, &turns, FUTEX_WAIT, seen, &longest, 0L, 0L);
  }
};
static_assert(sizeof(BackGate) <= kBackGateBytes);

}  // namespace ckpt
