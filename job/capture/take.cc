#include "job/capture/take.h"

#include <algorithm>

#include "base/clock.h"
#include "image/write/image_directory.h"
#include "job/capture/coordinator.h"
#include "job/directory/job_directory.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/core/statistics.h"
#include "libckpt_rt/core/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// One checkpoint of a directory's jobs at a time. Meanwhile whoever has the lock may want us in its own.
Result<void> lock(int directory, void (*serve_joins)()) {
  constexpr int64_t kPatienceNs = 60'000'000'000;
  constexpr timespec kStep{0, 1'000'000};
  const int64_t deadline = now_ns() + kPatienceNs;
  while (!try_lock(directory)) {
    serve_joins();
    if (now_ns() > deadline) {
      return make_error(ExitCode::kTimeout, 0,
                        "another checkpoint of this job or directory is still being taken; ask again");
    }
    sys::call(__NR_nanosleep, &kStep, nullptr);
  }
  return {};
}

}  // namespace

Result<CheckpointCost> take(const Wish& wish, Report& report, void (*serve_joins)()) {
  constexpr uint32_t kAttempts = 6;
  if (wish.only || library.job.root == 0 || is_alone(library.job, library.pid)) return take_checkpoint();
  auto directory = open_image_directory(library.job.directory);
  if (!directory.ok()) return directory.error();
  CKPT_TRY(lock(directory->get(), serve_joins));
  if (const uint32_t removed = remove_dead_jobs(directory->get()); removed != 0)
    log_format(directory->get(), "removed {} unfinished checkpoints of jobs", removed);
  for (uint32_t attempt = 1;; ++attempt) {
    Arena arena;
    if (!reserve_own(arena, 16 << 20))
      return make_error(ExitCode::kInternal, ENOMEM, "no memory to list a job");
    ArenaVector<Listed> members(arena);
    if (!list_members(library.job, library.pid, arena, members))
      return make_error(ExitCode::kInternal, ENOMEM, "no memory to list a job");
    if (const int root = hidden_root(library.job, library.pid, members); root != 0) {
      return make_error(
          ExitCode::kPermission, 0,
          "it belongs to a job of another user's: ask its first process, {}, as that user or as root, or "
          "take one process with --only",
          root);
    }
    if (members.size() <= 1) return take_checkpoint();
    if (user_settings().to[0] != '\0') {
      const auto living =
          std::count_if(members.begin(), members.end(), [](const Listed& m) { return !m.look.ended(); });
      if (living <= 1) return take_checkpoint();
      return make_error(
          ExitCode::kUnsupported, 0,
          "a job of several processes cannot be streamed (CKPT_TO) yet: leave CKPT_TO out, or take one "
          "process with --only");
    }
    Result<CheckpointCost> result = Error{};
    bool again = false;
    {
      Coordinator coordinator(directory->get(), wish, report);
      coordinator.own_memory[1] = arena.range();
      if (Result<void> begun = coordinator.begin(attempt, members.span()); !begun.ok()) {
        result = begun.error();
      } else {
        ScopedSession scope(coordinator);
        result = take_checkpoint();
      }
      again = coordinator.again;
    }
    report.attempts = attempt;
    if (result.ok()) {
      log_format(directory->get(), "job {} processes {} pause {} us", static_cast<const char*>(report.path),
                 report.members, report.pause_ns / 1000);
      return result;
    }
    log_line(directory->get(), result.error().message());
    if (!again || attempt == kAttempts) {
      statistics::count_failure(result.error());
      return result;
    }
  }
}

}  // namespace ckpt::job
