#include "libckpt_rt/checkpoint.h"

#include "base/clock.h"
#include "base/kernel_caps.h"
#include "libckpt_rt/agent.h"
#include "libckpt_rt/checkpoint_run.h"
#include "libckpt_rt/futex_words.h"
#include "libckpt_rt/library.h"
#include "libckpt_rt/log.h"
#include "writer/image_directory.h"

namespace ckpt {

Mode choose_mode(Mode wanted, Error* why_not_realtime) {
  if (wanted == Mode::kSequential || wanted == Mode::kFork) return wanted;
  UserfaultfdProbe probe = probe_userfaultfd();
  if (probe.allows_realtime()) return Mode::kRealtime;
  if (why_not_realtime != nullptr && probe.access == UserfaultfdAccess::kFull) {
    *why_not_realtime = make_error(ExitCode::kUnavailable, 0,
                                   "this kernel's userfaultfd cannot write-protect all memory: using mode fork; "
                                   "Linux 5.19 or newer can");
  } else if (why_not_realtime != nullptr) {
    *why_not_realtime = make_error(ExitCode::kUnavailable, probe.syscall_error,
                                   "full userfaultfd is not allowed here ({}): using mode fork; `ckpt check` says how to change that",
                                   errno_name(probe.syscall_error));
  }
  return Mode::kFork;
}

Result<CheckpointCost> take_checkpoint() {
  // A program that gives much memory back while it is copied can spoil an attempt. After two, the
  // kernel's own copy-on-write takes the snapshot: slower, but nothing can spoil it.
  constexpr uint32_t kAttempts = 3;
  const int64_t requested = now_ns();
  Mode mode = choose_mode(library.settings.mode, nullptr);
  if (mode == Mode::kRealtime && futex_words::overflow()) mode = Mode::kFork;
  for (uint32_t attempt = 1;; ++attempt) {
    CheckpointCost cost;
    cost.attempts = attempt;
    cost.mode = mode;
    CheckpointRun run(mode, requested, cost);
    auto result = run.run();
    if (result.ok()) {
      agent::count_success(cost);
      auto directory = open_image_directory(library.directory);
      if (directory.ok()) {
        auto pruned = prune_images(directory->get(), library.run_id, library.settings.keep, run.key());
        if (!pruned.ok()) log_line(directory->get(), pruned.error().message());
        log_format(directory->get(), "image {} mode {} pause {} us, durable after {} ms, {} bytes", cost.image,
                   mode_name(mode), cost.pause_ns / 1000, cost.durable_ns / 1'000'000, cost.bytes_written);
      }
      return cost;
    }
    auto directory = open_image_directory(library.directory);
    if (directory.ok()) log_line(directory->get(), result.error().message());
    if (run.memory_vanished() && attempt < kAttempts) {
      if (attempt + 1 == kAttempts) mode = Mode::kFork;
      continue;
    }
    agent::count_failure(result.error());
    return result.error();
  }
}

}  // namespace ckpt
