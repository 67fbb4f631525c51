#include "libckpt_rt/protect/release_guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/protect/write_protect.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::release_guard {

namespace {
constinit std::atomic<Copier*> active{nullptr};
constinit std::atomic<uint64_t> bell{0};
constinit FutexWord inside{0};

// In the library's own data, which is never protected: both sides write to it.
enum State : uint32_t { kFree = 0, kFilling = 1, kAsked = 2, kServed = 3, kDone = 4 };
enum class RequestKind : uint32_t { kCopy, kForget };
struct Request {
  FutexWord state{kFree};
  RequestKind kind = RequestKind::kCopy;
  AddrRange range{};
};
constinit Request requests[32];
constinit FutexWord freed{0};  // changes when a request becomes free

// Signals of the program wait until its thread has its answer: a handler that left by siglongjmp would take
// the request and the place inside with it. Not ours, which stops the thread, nor those of the thread's own
// faults.
class ScopedProgramSignalsBlocked {
 public:
  ScopedProgramSignalsBlocked() {
    uint64_t blocked = ~(bit(hooks::checkpoint_signal.load(std::memory_order_relaxed)) | bit(SIGSEGV) |
                         bit(SIGBUS) | bit(SIGILL) | bit(SIGFPE) | bit(SIGTRAP) | bit(SIGSYS));
    long r;
    do {
      // Under guard the kernel may not write to a page of the stack that a stop has protected; a thread may.
      before_.store(0, std::memory_order_relaxed);
      r = sys::call(__NR_rt_sigprocmask, SIG_BLOCK, &blocked, &before_, 8L);
    } while (r == -EFAULT);
    blocked_ = r == 0;  // else a seccomp filter forbids it
  }
  ~ScopedProgramSignalsBlocked() {
    if (blocked_) sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &before_, 0L, 8L);
  }
  ScopedProgramSignalsBlocked(const ScopedProgramSignalsBlocked&) = delete;
  ScopedProgramSignalsBlocked& operator=(const ScopedProgramSignalsBlocked&) = delete;

 private:
  static uint64_t bit(int signal) { return 1ull << (signal - 1); }
  std::atomic<uint64_t> before_{0};
  bool blocked_ = false;
};

Request& free_request() {
  for (;;) {
    const uint32_t before = freed.load(std::memory_order_acquire);
    for (Request& r : requests) {
      uint32_t expected = kFree;
      if (r.state.compare_exchange_strong(expected, kFilling, std::memory_order_acquire)) return r;
    }
    futex_wait(freed, before);
  }
}

// False: no thread heard it (none serves any more, or a seccomp filter forbids the call).
bool ring() {
  for (;;) {
    // A stop in between may be followed by a restart, and then the page is somebody else's.
    const uint32_t departures = ckpt_departures.load(std::memory_order_relaxed);
    if (hooks::memory_registered.load(std::memory_order_relaxed) == 0) return false;
    const auto page = static_cast<long>(bell.load(std::memory_order_relaxed));
    const long r = call_unless_stopped(departures, __NR_madvise, page, kPageSize, MADV_DONTNEED);
    if (r != kStoppedBefore) return r == 0;
  }
}

void ask(RequestKind kind, AddrRange range) {
  lock_ranks::waits_for(LockRank::kReleaseSlots);
  Request& r = free_request();
  r.kind = kind;
  r.range = range;
  // seq_cst with end(): it finds the request, or we find that nobody serves any more.
  r.state.store(kAsked, std::memory_order_seq_cst);
  if (!ring() || hooks::memory_registered.load(std::memory_order_seq_cst) == 0) {
    uint32_t expected = kAsked;
    r.state.compare_exchange_strong(expected, kDone, std::memory_order_acquire);
  }
  for (uint32_t s; (s = r.state.load(std::memory_order_acquire)) != kDone;) futex_wait(r.state, s);
  r.state.store(kFree, std::memory_order_release);
  freed.fetch_add(1, std::memory_order_release);
  futex_wake(freed);
}

// Calls wanted() and asks for what it wants while nobody can end the serving.
template <typename Wanted>
void ask_if(RequestKind kind, AddrRange range, Wanted&& wanted) {
  // A new child has our state but none of our threads; a child of vfork has our memory.
  know_child();
  if (range.empty() || this_process.pid != sys::getpid()) return;
  const ScopedProgramSignalsBlocked blocked;
  // seq_cst with close() and end(): either they see us inside, or we see that serving is over.
  inside.fetch_add(1, std::memory_order_seq_cst);
  if (wanted()) ask(kind, range);
  uint32_t now = inside.load(std::memory_order_relaxed);
  do {
    // The wait for us was given up.
    if (now == 0) return;
  } while (!inside.compare_exchange_weak(now, now - 1, std::memory_order_release, std::memory_order_relaxed));
  if (now == 1) futex_wake(inside);
}

constexpr int64_t kPatienceNs = 10'000'000'000;

// A thread may be kept from running for long, by its priority or by a debugger. So the wait has an end, after
// more time than a request can take.
void wait_until_nobody_asks() {
  const int64_t deadline = now_ns() + kPatienceNs;
  uint32_t n;
  for (int64_t left; (n = inside.load(std::memory_order_seq_cst)) != 0 && (left = deadline - now_ns()) > 0;) {
    const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
    futex_wait(inside, n, &limit);
  }
  if (n == 0) return;
  points::at("release.abandoned");
  inside.compare_exchange_strong(n, 0, std::memory_order_relaxed);
}
}  // namespace

void before_release(AddrRange range) {
  ask_if(RequestKind::kCopy, range, [&] {
    const Copier* copier = active.load(std::memory_order_seq_cst);
    return copier != nullptr && copier->holds(range);
  });
}

void forget(AddrRange range) {
  ask_if(RequestKind::kForget, range,
         [] { return hooks::memory_registered.load(std::memory_order_seq_cst) != 0; });
}

// A child would write past the protection of this process to memory that other members copy. The other
// members are soon done with that memory; if not, the checkpoint is given up rather than the fork.
void await_members() {
  constexpr timespec kStep{0, 1'000'000};
  const int64_t deadline = now_ns() + kPatienceNs;
  for (bool shared = true; shared;) {
    ask_if(RequestKind::kCopy, {Addr{0}, Addr{1}}, [&] {
      Copier* copier = active.load(std::memory_order_seq_cst);
      shared = copier != nullptr && copier->is_shared();
      if (shared && now_ns() > deadline) {
        copier->give_up_shared();
        shared = false;
      }
      return false;
    });
    if (shared) sys::call(__NR_nanosleep, &kStep, nullptr);
  }
}

void before_sharing() {
  // Every request is one range: shared anonymous memory of one process is a handful of mappings.
  for (size_t i = 0;; ++i) {
    AddrRange range{};
    bool more = false;
    ask_if(RequestKind::kCopy, {Addr{0}, Addr{1}}, [&] {
      const Copier* copier = active.load(std::memory_order_seq_cst);
      more = copier != nullptr && copier->shared_range(i, &range);
      return false;
    });
    if (!more) break;
    before_release(range);
  }
  await_members();
}

void begin(Addr bell_page) {
  bell.store(bell_page.value, std::memory_order_relaxed);
  hooks::memory_registered.store(1, std::memory_order_seq_cst);
}

void note_registration() {
  // Never 0. Between begin() and end() it is the agent's.
  if (hooks::memory_registered.load(std::memory_order_relaxed) != 0) hooks::memory_registered.fetch_add(2);
}

void open(Copier& copier) {
  active.store(&copier, std::memory_order_seq_cst);
  hooks::copy_under_way.store(1, std::memory_order_relaxed);  // the release of the threads publishes it
}

void serve(WriteProtection& protection) {
  for (Request& r : requests) {
    uint32_t expected = kAsked;
    if (!r.state.compare_exchange_strong(expected, kServed, std::memory_order_acquire)) continue;
    if (Copier* copier = active.load(std::memory_order_relaxed)) copier->before_release(r.range);
    if (r.kind == RequestKind::kForget) protection.forget(r.range);
    r.state.store(kDone, std::memory_order_release);
    futex_wake(r.state);
  }
}

void close() {
  hooks::copy_under_way.store(0, std::memory_order_relaxed);
  active.store(nullptr, std::memory_order_seq_cst);
  wait_until_nobody_asks();
}

void end() {
  hooks::memory_registered.store(0, std::memory_order_seq_cst);
  for (Request& r : requests) {
    uint32_t expected = kAsked;
    if (r.state.compare_exchange_strong(expected, kDone, std::memory_order_seq_cst)) futex_wake(r.state);
  }
  wait_until_nobody_asks();
}

void reset_after_restart() {
  hooks::copy_under_way.store(0, std::memory_order_relaxed);
  hooks::memory_registered.store(0, std::memory_order_relaxed);
  active.store(nullptr, std::memory_order_relaxed);
  // Threads that asked in the stopped process find themselves answered.
  for (Request& r : requests) {
    const uint32_t s = r.state.load(std::memory_order_relaxed);
    if (s == kAsked || s == kServed) r.state.store(kDone, std::memory_order_relaxed);
  }
}

void reset_in_child() {
  reset_after_restart();
  inside.store(0, std::memory_order_relaxed);
  for (Request& r : requests) r.state.store(kFree, std::memory_order_relaxed);
}

}  // namespace ckpt::release_guard
