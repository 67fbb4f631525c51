#include "libckpt_rt/checkpoint/stages/memory/mapping_limit.h"

#include <errno.h>

#include "libckpt_rt/checkpoint/stages/memory/memory_size.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Error blame_mapping_limit(const Error& error) {
  constexpr uint64_t kOurs = 64;  // mappings that a checkpoint adds, at most
  char text[32];
  uint64_t most = 0;
  if (error.sys_errno != ENOMEM) return error;
  const long n = read_small_file("/proc/sys/vm/max_map_count", text, sizeof(text));
  if (n <= 0 || numbers({text, static_cast<size_t>(n)}, 10, &most, 1) != 1) return error;
  const uint64_t mappings = memory_size().mappings;
  if (mappings + kOurs < most) return error;
  return make_error(
      ExitCode::kUnavailable, ENOMEM,
      "the program has {} of the {} mappings that the kernel allows it, a checkpoint needs up to "
      "{} more; raise vm.max_map_count (sysctl)",
      mappings, most, kOurs);
}

}  // namespace ckpt
