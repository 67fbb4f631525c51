#include "job/session/named_points.h"

#include <signal.h>

#include <string_view>

#include "base/sys.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job::points {

constinit std::atomic<const char*> wanted{nullptr};

namespace {

int times = 0;

}  // namespace

void want(const char* text) { wanted.store(text, std::memory_order_relaxed); }

void reached(const char* point) {
  std::string_view text(wanted.load(std::memory_order_relaxed));
  const size_t equals = text.rfind('=');
  if (equals == text.npos) return;
  std::string_view action = text.substr(equals + 1);
  int wanted_times = 1;
  if (const size_t colon = action.find(':'); colon != action.npos && colon + 1 < action.size()) {
    wanted_times = action[colon + 1] - '0';
    action = action.substr(0, colon);
  }
  std::string_view name = text.substr(0, equals);
  if (const size_t at = name.find('@'); at != name.npos) {
    // A program may have another name by now than when it started.
    if (name.substr(at + 1) != std::string_view(library.name)) return;
    name = name.substr(0, at);
  }
  if (name != std::string_view(point)) return;
  if (++times < wanted_times) return;
  wanted.store(nullptr, std::memory_order_relaxed);
  sys::call(__NR_kill, sys::getpid(), action == "stop" ? SIGSTOP : SIGKILL);
}

}  // namespace ckpt::job::points
