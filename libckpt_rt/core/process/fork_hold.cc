#include "libckpt_rt/core/process/fork_hold.h"

#include "base/clock.h"
#include "base/fork_path.h"
#include "libckpt_rt/core/process/own_page.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::fork_hold {

namespace {

constexpr int64_t kLongestNs = 100'000'000;  // a fork of 16 GiB takes half of that

}  // namespace

CKPT_FORK_PATH void begin() {
  OwnPage& own = *own_page::page;
  for (;;) {
    // seq_cst with hold(): either it counts us, or we see that it holds.
    own.forks.fetch_add(1, std::memory_order_seq_cst);
    if (own.forks_held.load(std::memory_order_seq_cst) == 0) return;
    end();
    while (own.forks_held.load(std::memory_order_acquire) != 0) futex_wait(own.forks_held, 1);
  }
}

CKPT_FORK_PATH void end() {
  OwnPage& own = *own_page::page;
  // A restarted thread ends a fork that began in another process.
  uint32_t now = own.forks.load(std::memory_order_relaxed);
  while (now != 0 && !own.forks.compare_exchange_weak(now, now - 1, std::memory_order_seq_cst)) {
  }
  if (own.forks_held.load(std::memory_order_seq_cst) != 0) futex_wake(own.forks);
}

bool any_inside() { return own_page::page->forks.load(std::memory_order_seq_cst) != 0; }

void reset() { own_page::page->forks.store(0, std::memory_order_relaxed); }

bool hold() {
  OwnPage& own = *own_page::page;
  own.forks_held.store(1, std::memory_order_seq_cst);
  const int64_t deadline = now_ns() + kLongestNs;
  for (uint32_t n; (n = own.forks.load(std::memory_order_seq_cst)) != 0;) {
    const int64_t rest = deadline - now_ns();
    if (rest <= 0) {
      release();
      return false;
    }
    const timespec timeout{0, rest};
    futex_wait(own.forks, n, &timeout);
  }
  return true;
}

void release() {
  OwnPage& own = *own_page::page;
  own.forks_held.store(0, std::memory_order_release);
  futex_wake(own.forks_held);
}

}  // namespace ckpt::fork_hold
