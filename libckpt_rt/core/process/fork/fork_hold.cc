#include "libckpt_rt/core/process/fork/fork_hold.h"

#include <errno.h>
#include <fmt/format.h>

#include <string_view>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::fork_hold {

namespace {

constexpr int64_t kLongestNs = 100'000'000;  // a fork of 16 GiB takes half of that

// Each thread looks for its own place first.
std::atomic<int>& place_of(OwnPage& own, int tid, size_t i) {
  return own.forking[(static_cast<size_t>(tid) + i) % OwnPage::kForkPlaces];
}

CKPT_FORK_PATH void take_place(OwnPage& own, int tid) {
  for (size_t i = 0; i < OwnPage::kForkPlaces; ++i) {
    int nobody = 0;
    // seq_cst with hold(): either it sees us, or we see that it holds.
    if (place_of(own, tid, i).compare_exchange_strong(nobody, tid, std::memory_order_seq_cst)) return;
  }
  own.more_forking.fetch_add(1, std::memory_order_seq_cst);
}

CKPT_FORK_PATH void give_back(OwnPage& own, int tid) {
  for (size_t i = 0; i < OwnPage::kForkPlaces; ++i) {
    int mine = tid;
    if (place_of(own, tid, i).compare_exchange_strong(mine, 0, std::memory_order_seq_cst)) return;
  }
  // A restarted thread ends a fork that began in another process.
  uint32_t now = own.more_forking.load(std::memory_order_relaxed);
  while (now != 0 && !own.more_forking.compare_exchange_weak(now, now - 1, std::memory_order_seq_cst)) {
  }
}

// No thread of this process, and no process that runs: such a one was killed, also where nobody has waited
// for it yet. What cannot be told counts as one that runs.
bool is_gone(int tid) {
  if (sys::call(__NR_tgkill, sys::getpid(), tid, 0) == 0) return false;
  char path[40], stat[512];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/stat", tid).out = '\0';
  const long n = read_small_file(path, stat, sizeof(stat));
  if (n <= 0) return n == -ENOENT || n == -ESRCH;
  const std::string_view text(stat, static_cast<size_t>(n));
  const size_t name_end = text.rfind(')');
  const char state = name_end != text.npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
  return state == 'Z' || state == 'X';
}

}  // namespace

CKPT_FORK_PATH void begin() {
  lock_ranks::waits_for(LockRank::kForkHold);
  for (;;) {
    const int tid = sys::gettid();
    OwnPage& own = *own_page::page;
    take_place(own, tid);
    if (own.forks_held.load(std::memory_order_seq_cst) == 0) return;
    end();
    // Behind a restart it may be elsewhere.
    while (own_page::page->forks_held.load(std::memory_order_acquire) != 0)
      futex_wait(own_page::page->forks_held, 1);
  }
}

CKPT_FORK_PATH void end() {
  const int tid = sys::gettid();
  OwnPage& own = *own_page::page;
  give_back(own, tid);
  if (own.forks_held.load(std::memory_order_seq_cst) == 0) return;
  own.forks_ended.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(own.forks_ended);
}

bool any_inside() {
  OwnPage& own = *own_page::page;
  bool any = own.more_forking.load(std::memory_order_seq_cst) != 0;
  for (std::atomic<int>& place : own.forking) {
    int tid = place.load(std::memory_order_seq_cst);
    if (tid == 0) continue;
    // Another thread may have its number since, and the place too.
    if (is_gone(tid)) place.compare_exchange_strong(tid, 0, std::memory_order_seq_cst);
    any = any || place.load(std::memory_order_seq_cst) != 0;
  }
  return any;
}

void reset() {
  OwnPage& own = *own_page::page;
  for (std::atomic<int>& place : own.forking) place.store(0, std::memory_order_relaxed);
  own.more_forking.store(0, std::memory_order_relaxed);
}

bool hold() {
  lock_ranks::takes(LockRank::kForkHold);
  OwnPage& own = *own_page::page;
  own.forks_held.store(1, std::memory_order_seq_cst);
  const int64_t deadline = now_ns() + kLongestNs;
  for (;;) {
    const uint32_t ended = own.forks_ended.load(std::memory_order_seq_cst);
    if (!any_inside()) return true;
    const int64_t rest = deadline - now_ns();
    if (rest <= 0) {
      release();
      return false;
    }
    const timespec timeout{0, rest};
    futex_wait(own.forks_ended, ended, &timeout);
  }
}

void release() {
  OwnPage& own = *own_page::page;
  own.forks_held.store(0, std::memory_order_release);
  futex_wake(own.forks_held);
  lock_ranks::released(LockRank::kForkHold);
}

}  // namespace ckpt::fork_hold
