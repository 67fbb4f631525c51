#include "libckpt_rt/checkpoint/account/progress.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::checkpoint_progress {

namespace {

constexpr int64_t kBetweenNs = 100'000'000;

// Written by the agent before the writer is told to begin.
constinit int to = -1;
constinit uint64_t total = 0;
// The writer's.
constinit int64_t last_ns = 0;

}  // namespace

void tell(int socket) {
  to = socket;
  total = 0;
  last_ns = 0;
}

void expect(uint64_t bytes) { total = bytes; }

void written(uint64_t bytes) {
  if (to < 0) return;
  const int64_t now = now_ns();
  if (now - last_ns < kBetweenNs) return;
  last_ns = now;
  char line[64];
  auto end = fmt::format_to_n(line, sizeof(line), "progress {} {}\n", bytes < total ? bytes : total, total);
  sys::call(__NR_sendto, to, line, end.size, MSG_NOSIGNAL | MSG_DONTWAIT, 0L, 0L);
}

}  // namespace ckpt::checkpoint_progress
