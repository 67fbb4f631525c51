#include "cli/hosts/agent/local_checkpoint.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace ckpt::cli {

namespace {

cluster::Step step_named(const std::string& name) {
  using cluster::Step;
  for (Step s : {Step::kPrepared, Step::kStanding, Step::kDrained, Step::kSampled, Step::kDurable}) {
    if (name == cluster::name_of(s)) return s;
  }
  return Step::kNone;
}

}  // namespace

LocalCheckpoint::LocalCheckpoint() : event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void LocalCheckpoint::put(LocalEvent event) {
  const std::lock_guard<std::mutex> guard(lock_);
  events_.push_back(std::move(event));
  const uint64_t one = 1;
  (void)!write(event_fd_.get(), &one, sizeof(one));
}

std::vector<LocalEvent> LocalCheckpoint::take() {
  uint64_t count;
  (void)!read(event_fd_.get(), &count, sizeof(count));
  const std::lock_guard<std::mutex> guard(lock_);
  return std::move(events_);
}

void LocalCheckpoint::tell(char how, const std::string& more) {
  const std::lock_guard<std::mutex> guard(lock_);
  answer_ = how + more;
  told_.notify_all();
}

void LocalCheckpoint::join() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    ends_ = true;
  }
  tell(kStepGiveUp);
  thread_.join();
}

void LocalCheckpoint::begin(int pid, const HostsPart& part, const std::string& leave_out) {
  if (thread_.joinable()) thread_.join();
  answer_.reset();
  ends_ = false;
  thread_ = std::thread([this, pid, part, leave_out] {
    AskOptions options;
    options.leave_out = leave_out;
    options.part = &part;
    options.at_step = [this](const std::string& step, const Answer& lines) {
      const bool stuck = step == "stuck";
      put({step_named(step), step == "posted", step == "reconnected", stuck, lines, {}});
      std::unique_lock<std::mutex> guard(lock_);
      told_.wait(guard, [this, stuck] { return stuck ? ends_ : answer_.has_value(); });
      if (stuck) return std::string(1, kStepGiveUp);
      std::string how = *answer_;
      // kStepGiveUp and kStepKeep hold for all steps that follow.
      if (how[0] == kStepContinue || how[0] == kStepReconnect) answer_.reset();
      return how;
    };
    LocalEvent end;
    if (auto target = await_target(pid); !target.ok()) {
      end.error = target.error();
    } else if (auto answer = ask(*target, ControlOperation::kCheckpoint, {}, {}, options); !answer.ok()) {
      end.error = answer.error();
    } else {
      end.lines = std::move(*answer);
    }
    put(std::move(end));
  });
}

}  // namespace ckpt::cli
