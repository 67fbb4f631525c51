#include "libckpt_rt/core/process/beginning.h"

#include <algorithm>
#include <string_view>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constinit int64_t began_ns = 0;

int64_t look() {
  char text[1024];
  const long n = read_small_file("/proc/self/stat", text, sizeof(text));
  std::string_view fields(text, n > 0 ? static_cast<size_t>(n) : 0);
  fields.remove_prefix(std::min(fields.size(), fields.rfind(')') + 1));
  // proc(5) has the start time as field 22; the first number here is field 4, for the state is a letter.
  constexpr size_t kStartTime = 22 - 4;
  constexpr int64_t kTick = 10'000'000;  // ns: USER_HZ is 100
  constexpr int64_t kLate = 10'000'000;  // ns: births are those of the last tick, of 100 a second
  uint64_t all[kStartTime + 1];
  if (numbers(fields, 10, all, kStartTime + 1) != kStartTime + 1) return 1;
  return now_ns(CLOCK_REALTIME) - (now_ns(CLOCK_BOOTTIME) - static_cast<int64_t>(all[kStartTime]) * kTick) -
         kLate;
}

}  // namespace

int64_t process_began_ns() { return look(); }

CKPT_START_PATH void set_job_began_ns(int64_t ns) { began_ns = ns; }

int64_t job_began_ns() {
  if (began_ns == 0) began_ns = look();
  return began_ns;
}

}  // namespace ckpt
