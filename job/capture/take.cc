#include "job/capture/take.h"

#include <algorithm>

#include "base/clock.h"
#include "image/write/directory/image_directory.h"
#include "job/capture/coordinator/coordinator.h"
#include "job/directory/directory_lock.h"
#include "job/directory/job_directory.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// One checkpoint in a directory at a time. The process that has the lock may want us in its own checkpoint.
Result<void> take_lock(DirectoryLock& lock, int directory, bool (*serve_joins)()) {
  constexpr int64_t kPatienceNs = 60'000'000'000;
  constexpr timespec kStep{0, 1'000'000};
  const int64_t deadline = now_ns() + kPatienceNs;
  while (!lock.try_take(directory)) {
    if (!serve_joins())
      return make_error(ExitCode::kUnavailable, 0, "the job is about to go back to a checkpoint; ask again");
    if (now_ns() > deadline) {
      return make_error(ExitCode::kTimeout, 0,
                        "another checkpoint of this job or directory is still being taken; ask again");
    }
    sys::call(__NR_nanosleep, &kStep, nullptr);
  }
  return {};
}

// Waits, 1.3 s in all, for what is under way for a moment only: the program has to go on for it to pass, on a
// busy machine until its processes have had their turns.
class Waits {
 public:
  bool left() const { return count_ < kMost; }
  // unaccepted: a server is to accept it.
  void wait(bool unaccepted) {
    const timespec moment{0, kFirstNs << count_++};  // below a second each
    sys::call(__NR_nanosleep, &moment, nullptr);
    unaccepted_ = unaccepted;
    if (unaccepted && held_) ++in_vain_;
    held_ = false;
  }
  // For the next attempt. Where holding does not help it stands in the way: a server's helper that has to
  // make a process for its answer is not held the second time.
  Coordinator::HoldsConnects hold() {
    using Holds = Coordinator::HoldsConnects;
    held_ = unaccepted_ && in_vain_ < kMostInVain && holds_ < kMostHolds;
    if (!held_) return Holds::kNo;
    ++holds_;
    return in_vain_ == 0 ? Holds::kAndCreation : Holds::kAlone;
  }
  uint32_t count() const { return count_; }

 private:
  static constexpr uint32_t kMost = 6, kMostInVain = 2, kMostHolds = 6;
  static constexpr int64_t kFirstNs = 20'000'000;
  uint32_t count_ = 0, holds_ = 0, in_vain_ = 0;
  bool unaccepted_ = false, held_ = false;
};

Result<CheckpointCost> take_alone(bool& had_company, Waits& waits) {
  for (;;) {
    const ExpectAlone alone(waits.left(), waits.hold() != Coordinator::HoldsConnects::kNo);
    auto result = take_checkpoint();
    had_company = alone.was_not();
    if (result.ok() || !alone.found_passing()) return result;
    waits.wait(alone.found_unaccepted());
  }
}

Result<void> refuse_hidden_root(const ArenaVector<Listed>& members) {
  const int root = hidden_root(own_job.identity, this_process.pid, members);
  if (root == 0) return {};
  return make_error(
      ExitCode::kPermission, 0,
      "it belongs to a job of another user's: ask its first process, {}, as that user or as root, or "
      "take one process with --only",
      root);
}

// The same, where the directory cannot be opened: a hidden root may be the reason.
Result<void> refuse_hidden_root() {
  Arena arena;
  if (!reserve_own(arena, 16 << 20)) return {};
  ArenaVector<Listed> members(arena);
  if (!list_members(own_job.identity, this_process.pid, arena, members)) return {};
  return refuse_hidden_root(members);
}

}  // namespace

Result<CheckpointCost> take(const TakeOptions& options, TakeReport& report, bool (*serve_joins)()) {
  constexpr uint32_t kAttempts = 6;
  // A process that is made past libc, or ends so, comes into any attempt or not, and an attempt is short.
  constexpr uint32_t kMoreForComings = 16;
  uint32_t comings = 0;
  Waits waits;
  const bool hosts = options.over_hosts();
  if (hosts && own_job.identity.root == 0)
    return make_error(ExitCode::kUnsupported, 0, "it is in no job; start it with ckpt run --hosts");
  if (!hosts && (options.only || own_job.identity.root == 0)) return take_checkpoint();
  bool had_company = false;
  if (!hosts && is_alone(own_job.identity, this_process.pid)) {
    auto result = take_alone(had_company, waits);
    if (!had_company) return result;
  }
  const char* directory_name = nullptr;
  auto directory = open_job_directory(&directory_name);
  if (!directory.ok()) {
    CKPT_TRY(refuse_hidden_root());
    return directory.error();
  }
  DirectoryLock lock;
  CKPT_TRY(take_lock(lock, directory->get(), serve_joins));
  if (const uint32_t removed = remove_dead_jobs(directory->get()); removed != 0)
    log_format(directory->get(), "removed {} unfinished checkpoints of jobs", removed);
  for (uint32_t attempt = 1;; ++attempt) {
    Arena arena;
    if (!reserve_own(arena, 16 << 20))
      return make_error(ExitCode::kInternal, ENOMEM, "no memory to list a job");
    ArenaVector<Listed> members(arena);
    if (!list_members(own_job.identity, this_process.pid, arena, members))
      return make_error(ExitCode::kInternal, ENOMEM,
                        "the job's members cannot be listed: no memory or no descriptor is left");
    CKPT_TRY(refuse_hidden_root(members));
    // If other members came and went, this process is taken as a job of one, which holds the creation of
    // processes.
    if (members.size() <= 1 && !had_company && !hosts) {
      auto result = take_alone(had_company, waits);
      if (!had_company || attempt == kAttempts) return result;
      continue;
    }
    Result<CheckpointCost> result = Error{};
    bool again = false, passing = false, unaccepted = false, came_or_went = false;
    {
      Coordinator coordinator(directory->get(), lock, directory_name, options, report);
      coordinator.own_memory[1] = arena.range();
      const Coordinator::Attempt this_one{hosts ? options.part.attempt : attempt, waits.left(), waits.hold()};
      if (Result<void> begun = coordinator.begin(this_one, members.span()); !begun.ok()) {
        result = begun.error();
      } else {
        ScopedSession scope(coordinator);
        result = take_checkpoint();
      }
      if (!result.ok()) result = coordinator.explain(result.error());
      again = coordinator.again;
      passing = coordinator.passing;
      unaccepted = coordinator.unaccepted;
      came_or_went = coordinator.came_or_went;
    }
    report.attempts = attempt + waits.count() + comings;
    if (result.ok()) {
      log_format(directory->get(), "job {} processes {} pause {} us", static_cast<const char*>(report.path),
                 report.members, report.pause_ns / 1000);
      if (report.why_not_restartable[0] != '\0') {
        const Error why = not_restartable(report.path, report.why_not_restartable);
        log_line(directory->get(), why.message());
        statistics::set_last_error(why);
      }
      return result;
    }
    log_line(directory->get(), result.error().message());
    if (passing && !hosts && waits.left()) {
      waits.wait(unaccepted);
      --attempt;  // that attempt says nothing of the method
      continue;
    }
    if (came_or_went && !hosts && comings < kMoreForComings) {
      ++comings;
      --attempt;
      continue;
    }
    // Over several hosts all begin again, or none: their head decides.
    if (!again || hosts || attempt == kAttempts) {
      statistics::count_failure(result.error());
      return result;
    }
  }
}

}  // namespace ckpt::job
