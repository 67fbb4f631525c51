// Going back as a member of a job (docs/back.md, "A job"): the hold, the decision, the barriers.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "job/session/creation.h"
#include "libckpt_rt/back/back_run.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

bool BackRun::asker_is_gone() const {
  pollfd ends{socket_, POLLRDHUP, 0};
  const timespec now{0, 0};
  return sys::call(__NR_ppoll, &ends, 1L, &now, 0L, 0L) > 0 &&
         (ends.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

Result<void> BackRun::hold() {
  job::creation::hold();
  job::creation::hold_end();
  held_ = true;
  message_ = {};
  message_.says = static_cast<uint32_t>(BackSays::kHeld);
  auto reply = ask(message_);
  if (!reply.ok()) return reply.error();
  points::at("member.back.held");
  return {};
}

// Born since the checkpoint: it has nothing to go back to. The process stands until it is killed, or until
// all go on as they were.
Result<BackCost> BackRun::stand_by() {
  if (!arena_.reserve(16 << 20, 0)) return make_error(ExitCode::kInternal, ENOMEM, "no memory to stop");
  pid_ = sys::getpid();
  CKPT_TRY(hold());
  CKPT_TRY(stand());
  message_ = {};
  message_.says = static_cast<uint32_t>(BackSays::kStanding);
  auto reply = ask(message_);
  // The asker may have much to cut: as long as the asker is there, this process waits.
  while (!reply.ok() && !answered_ && gate_.decided() != BackDecision::kOpen &&
         gate_.decided() != BackDecision::kGivenUp && !asker_is_gone())
    reply = hear_reply();
  // Once files are being cut or the job has committed, this process must not go on. `ckpt back` kills it; if
  // no word comes, it kills itself.
  if (!reply.ok() && !answered_ && !gate_.give_up() && gate_.decided() != BackDecision::kGivenUp) {
    gate_.fail();
    for (;;) sys::call(__NR_kill, pid_, SIGKILL);
  }
  if (!reply.ok()) return reply.error();
  return make_error(ExitCode::kUnavailable, 0, "the job goes on as it was");
}

// The word of the gate decides; what comes over the socket only says when to look.
Result<void> BackRun::commit_job() {
  points::at("member.back.ready");
  message_ = {};
  message_.says = static_cast<uint32_t>(BackSays::kMore);
  auto reply = ask(message_);
  auto undecided = [&] {
    return gate_.decided() == BackDecision::kCutting || gate_.decided() == BackDecision::kCommitted;
  };
  // The asker may have much to cut: as long as the asker is there, this process waits.
  while (!reply.ok() && !answered_ && undecided() && !asker_is_gone()) reply = hear_reply();
  const BackDecision decided = gate_.decided();
  if (reply.ok() && decided == BackDecision::kCommitted) {
    committed_ = true;
    points::at("member.back.committed");
    return {};
  }
  if (decided == BackDecision::kGivenUp || (answered_ && decided == BackDecision::kOpen) || gate_.give_up()) {
    if (!reply.ok()) return reply.error();
    return make_error(ExitCode::kUnavailable, 0, "the job goes on as it was");
  }
  if (gate_.decided() == BackDecision::kGivenUp)
    return make_error(ExitCode::kUnavailable, 0, "the job goes on as it was");
  // Files may have been cut.
  die("hearing of the asker", -EPIPE, 0);
}

// draining: meanwhile takes out what others still send. This process comes to the barrier when all that it
// has sent has arrived.
void BackRun::come_to(uint32_t barrier, bool draining) {
  constexpr int64_t kPatienceNs = 100'000'000, kDrainAgainNs = 1'000'000, kLookAgainNs = 50'000'000,
                    kLongestNs = 3600'000'000'000;  // another host may put back much memory first
  bool come = false;
  points::at("member.back.barrier");
  for (const int64_t began = now_ns();;) {
    if (draining) drain_on_thread();
    if (draining && opened_count_ == 0 && now_ns() - began > kPatienceNs) {
      threads_.run_on(
          *threads_.executor(), [](void* self) { static_cast<BackRun*>(self)->open_connections(); }, this);
    }
    if (!come && (!draining || all_sent())) {
      gate_.come_to(barrier);
      come = true;
    }
    const MemberGate::Waited waited =
        gate_.await(barrier, asker_is_gone(), draining ? kDrainAgainNs : kLookAgainNs);
    if (waited == MemberGate::Waited::kAll) return;
    if (waited == MemberGate::Waited::kFailed) die("another process of the job", 0, 0);
    if (!come && now_ns() - began > kLongestNs) die("emptying a connection", -ETIMEDOUT, 0);
  }
}

void BackRun::drain_on_thread() {
  threads_.run_on(
      *threads_.executor(), [](void* self) { static_cast<BackRun*>(self)->drain_all(); }, this);
}

// Reaps children that were born since the checkpoint. `ckpt back` has killed them and waited for their end,
// and the program does not know them. wait4(2) ignores children of other parents.
void BackRun::wait_for_ended() {
  for (int32_t pid : list<int32_t>(head_.ended, head_.ended_count)) {
    while (sys::call(__NR_wait4, pid, 0L, WNOHANG | __WALL, 0L) == -EINTR) {
    }
  }
}

}  // namespace ckpt
