#include "base/checks/check.h"
#include "base/memory/fork_path.h"

#include <atomic>
#include <cstring>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt::check {

namespace {

constinit std::atomic<Policy> policy{Policy::kAbort};

enum State : uint32_t { kNone, kBeingWritten, kHeld };
constinit std::atomic<uint32_t> state{kNone};
constinit char held[280] = {};

std::string_view name_of(const char* file) {
  const std::string_view path(file);
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

CKPT_START_PATH void set_policy(Policy wanted) { policy.store(wanted, std::memory_order_relaxed); }

[[gnu::cold]] bool failed(const char* file, int line, std::string_view text) {
  char out[sizeof(held)];
  const auto end =
      fmt::format_to_n(out, sizeof(out) - 1, "{}:{}: {} does not hold\n", name_of(file), line, text);
  const auto bytes = static_cast<size_t>(end.out - out);
  if (policy.load(std::memory_order_relaxed) == Policy::kAbort) {
    sys::call(__NR_write, 2, out, bytes);
    __builtin_trap();
  }
  uint32_t none = kNone;
  if (!state.compare_exchange_strong(none, kBeingWritten, std::memory_order_relaxed)) return false;
  std::memcpy(held, out, bytes - 1);
  held[bytes - 1] = '\0';
  // release: a thread that reads kHeld also sees the text.
  state.store(kHeld, std::memory_order_release);
  return false;
}

ScopedChecks::~ScopedChecks() {
  uint32_t is_held = kHeld;
  // Being written: it stays, for the next.
  state.compare_exchange_strong(is_held, kNone, std::memory_order_relaxed);
}

Result<void> ScopedChecks::result() const {
  const uint32_t now = state.load(std::memory_order_acquire);
  if (now == kNone) return {};
  return make_error(ExitCode::kInternal, 0, "an assumption is wrong ({}); the image was given up",
                    now == kHeld ? held : "being written down");
}

}  // namespace ckpt::check
