// Points at which the processes of a tree wait for each other while it is made.
//
// Owner:     restart. One page of memory that all of them share, made by ckpt-restart before the first.
// Callers:   ckpt-restart and every process of the tree before it becomes the saved one; one thread each.
// Never:     waits on when ckpt-restart has gone: wait() looks for that five times a second.
#pragma once

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/exit_codes.h"
#include "base/result.h"
#include "base/sys.h"

namespace ckpt {

// In this order. A process arrives at a point when it has done what the point names.
enum class Point : uint32_t {
  kBorn = 0,    // everybody: its children are there, it leads its session
  kLed = 1,     // everybody: it leads its group
  kJoined = 2,  // everybody: it is in its group
  // Members, and ckpt-restart for the planter and for each zombie that has ended: its helpers have exited, so
  // all have been adopted.
  kGone = 3,
  kOpened = 4,  // members: each has the files open that it needs, and who watches files may be told
  kPoints = 5,
};

// Of a process that all others wait for.
inline Error ended_while_made() {
  return make_error(
      ExitCode::kInternal, 0,
      "a process of ckpt-restart ended while the processes of the job were made: killed, or out "
      "of memory (dmesg tells); the images are unharmed");
}

class Meeting {
 public:
  Result<void> open() {
    void* p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      return make_error(ExitCode::kSystem, errno, "no memory to share with new processes ({})",
                        errno_name(errno));
    shared_ = new (p) Shared{};
    return {};
  }
  void close() {
    if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
    shared_ = nullptr;
  }

  void expect(Point point, uint32_t count) { shared_->expected[index(point)] = count; }

  void arrive(Point point) {
    // release: a process that finds all there sees what each did before it arrived.
    if (arrived(point).fetch_add(1, std::memory_order_acq_rel) + 1 == shared_->expected[index(point)])
      wake(point);
  }

  // False: the restart has failed, or ckpt-restart is gone. alive_fd: a pipe that only ckpt-restart can write
  // to.
  bool wait(Point point, int alive_fd) {
    constexpr timespec kLookAgain{0, 200'000'000};
    for (;;) {
      if (shared_->over.load(std::memory_order_acquire) != 0) return false;
      const uint32_t now = arrived(point).load(std::memory_order_acquire);
      if (now >= shared_->expected[index(point)]) return true;
      const long r = sys::call(__NR_futex, &arrived(point), FUTEX_WAIT, now, &kLookAgain, 0L, 0L);
      pollfd alive{alive_fd, 0, 0};
      if (r == -ETIMEDOUT && poll(&alive, 1, 0) > 0 && (alive.revents & (POLLHUP | POLLERR)) != 0)
        return false;
    }
  }

  // All have arrived there.
  bool has_met(Point point) {
    return arrived(point).load(std::memory_order_acquire) >= shared_->expected[index(point)];
  }

  // The planter has nothing left to do but to exit.
  void finish_planting() { shared_->planted.store(1, std::memory_order_release); }
  bool is_planted() { return shared_->planted.load(std::memory_order_acquire) != 0; }

  // Nobody waits any more.
  void give_up() {
    shared_->over.store(1, std::memory_order_release);
    for (uint32_t p = 0; p < index(Point::kPoints); ++p) {
      arrived(static_cast<Point>(p))
          .fetch_add(1, std::memory_order_acq_rel);  // a process that is about to wait looks again
      wake(static_cast<Point>(p));
    }
  }

 private:
  static constexpr uint32_t index(Point point) { return static_cast<uint32_t>(point); }
  struct Shared {
    std::atomic<uint32_t> arrived[static_cast<uint32_t>(Point::kPoints)];
    uint32_t expected[static_cast<uint32_t>(Point::kPoints)];
    std::atomic<uint32_t> over, planted;
  };

  std::atomic<uint32_t>& arrived(Point point) { return shared_->arrived[index(point)]; }
  void wake(Point point) { sys::call(__NR_futex, &arrived(point), FUTEX_WAKE, INT32_MAX, 0L, 0L, 0L); }

  Shared* shared_ = nullptr;
};

}  // namespace ckpt
