#include "base/checks/named_points.h"

#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <string_view>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt::points {

constinit std::atomic<const char*> wanted{nullptr};

namespace {

constinit const char* program_name = nullptr;
constinit const int* program_pid = nullptr;
constinit std::atomic<int> times{0}, children{0};

// Until somebody removes the file, or where none can be made.
void wait_here(int self) {
  constexpr timespec kWhile{0, 1'000'000};
  char name[] = "0000000000.waits";
  for (size_t at = 10; at-- > 0; self /= 10) name[at] = static_cast<char>('0' + self % 10);
  long fd = sys::call(__NR_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600L);
  if (fd < 0) return;
  sys::call(__NR_close, fd);
  while (sys::call(__NR_faccessat, AT_FDCWD, name, F_OK) == 0) sys::call(__NR_nanosleep, &kWhile, nullptr);
}

}  // namespace

void want(const char* text, const char* program, const int* pid) {
  program_name = program;
  program_pid = pid;
  wanted.store(text, std::memory_order_relaxed);
}

void child_follows() { children.fetch_add(1, std::memory_order_relaxed); }

void reached(const char* point) {
  const char* all = wanted.load(std::memory_order_relaxed);
  if (all == nullptr) return;
  std::string_view text(all);
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
    if (name.substr(at + 1) != std::string_view(program_name)) return;
    name = name.substr(0, at);
  }
  if (name != std::string_view(point)) return;
  const int self = sys::getpid();
  // A child's count ends with it: its successor begins anew.
  if (self != *program_pid && children.load(std::memory_order_relaxed) != wanted_times) return;
  if (self == *program_pid && times.fetch_add(1, std::memory_order_relaxed) + 1 < wanted_times) return;
  wanted.store(nullptr, std::memory_order_relaxed);
  if (action == "wait") return wait_here(self);
  const long signal = action == "stop" ? SIGSTOP : SIGKILL;
  if (self == *program_pid) {
    // To this very thread, so that it goes no further: one to the process is taken by any of its threads,
    // some time later.
    if (action != "leave") sys::call(__NR_tgkill, self, sys::gettid(), signal);
    return;
  }
  if (action != "leave") sys::call(__NR_kill, *program_pid, signal);
  sys::call(__NR_kill, self, signal);
}

}  // namespace ckpt::points
