// What the head does beside taking checkpoints: the job goes back in place, or the processes of a host go on
// elsewhere.
#include <cstdio>

#include "base/clock.h"
#include "cli/hosts/head/head_of_job.h"
#include "cli/hosts/restart/going_back.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

// The job's processes go back in place. Processes of some hosts may not get there when others have: then all
// are restarted from the same checkpoint, where they are.
void Head::go_back(const std::string& wish) {
  auto back = GoingBack::prepare(crew_, job_, wish.empty() ? directory_ : wish);
  if (!back.ok()) return answer(answer_of_error(back.error()));
  auto done = back->run([this, &back] { return back->was_decided() ? Result<void>() : meanwhile(0); });
  if (done.ok()) return answer(std::move(*done));
  if (!back->was_decided()) {
    Json said = answer_of_error(done.error());
    said["error"] = fmt::format("{}; the job goes on as it was", done.error().message());
    return answer(std::move(said));
  }
  end_.has_come = true;
  fails(done.error().code,
        fmt::format("the job was half way back when this failed: {}", done.error().message()));
  askers_.answer_on_host(
      Why{why_.code, fmt::format("{}; all of it is restarted from {}", why_.text, back->path())}.answer());
  if (auto gone = back->end_all(); !gone.ok()) {
    // A host has died: with --recover it is taken for dead, and all of the job goes on without it.
    if (run_.recover) end_.lost = crew_.find_gone();
    if (!end_.lost.empty()) return answer(why_.answer());
    const Error error = make_error(ExitCode::kUnavailable, 0,
                                   "{}; whether its processes have ended is not known ({}): when they have, "
                                   "ckpt-restart --hosts {} brings the job back",
                                   why_.text, gone.error().message(), back->path());
    end_.status = static_cast<int>(report(error));
    return answer(answer_of_error(error));
  }
  end_.moved = Moved{{}, "", "", back->path(), now_ns(), askers_.take_connection(), why_.text};
}

// The checkpoint counts, and all stand.
Head::MoveEnd Head::move(uint64_t id) {
  Result<void> result = moving_->bring(attempt_.parts, [this, id] { return meanwhile(id); });
  if (result.ok()) {
    if (const auto end = move_in_place(id)) return *end;
  }
  bool decided = false;
  if (result.ok()) {
    result = moving_->end_all(id, [this, &decided] {
      decided = true;
      decide_move();
    });
  }
  if (!result.ok() && !decided) {
    fails(result.error().code, fmt::format("{}; the job goes on where it was", result.error().message()));
    return MoveEnd::kStays;
  }
  end_for_move(result);
  return MoveEnd::kEnded;
}

// The agent of a user who has asked on a host of the job ends with the processes there.
void Head::decide_move() {
  askers_.answer_on_host({{"from", moving_->from()}, {"to", moving_->to()}, {"checkpoint", attempt_.path}});
}

// nothing: it takes a restart of all hosts, and all stand as they did.
std::optional<Head::MoveEnd> Head::move_in_place(uint64_t id) {
  const std::vector<int>& parts = moving_->parts();
  in_place_ = std::make_unique<MovingInPlace>(crew_, moving_->there(), parts, run_, recorded_, attempt_.path);
  const auto done = in_place_->run(
      id, [this, id] { return meanwhile(id); },
      [this, &parts] {
        for (const int part : parts) {
          if (askers_.served() && askers_.served()->host == part) decide_move();
          askers_.forget_host(part);
        }
      });
  if (done.ok()) {
    table_ = in_place_->table();
    return MoveEnd::kMoved;
  }
  const std::unique_ptr<MovingInPlace> failed = std::move(in_place_);
  if (failed->takes_restart()) {
    fmt::print(stderr, "ckpt: not in place: {}\n", printable(done.error().message()));
    return std::nullopt;
  }
  if (!failed->was_decided()) {
    fails(done.error().code, fmt::format("{}; the job goes on where it was", done.error().message()));
    return MoveEnd::kStays;
  }
  fmt::print(stderr, "ckpt: not in place: {}\n", printable(done.error().message()));
  decide_move();  // the agents of the others end as well
  end_for_move(failed->old_has_ended() ? failed->end_all() : done);
  return MoveEnd::kEnded;
}

// result: whether the processes of all hosts have ended, which are to come back from the checkpoint.
void Head::end_for_move(const Result<void>& result) {
  end_.has_come = true;
  fails(ExitCode::kUnavailable, "the job's processes are on their way to another host (ask again)");
  if (result.ok()) {
    end_.moved = Moved{moving_->parts(),
                       moving_->from(),
                       moving_->to(),
                       attempt_.path,
                       attempt_.told_at(cluster::Order::kStop),
                       askers_.take_connection(),
                       ""};
    return;
  }
  // Some of it may run there still: it must not run twice.
  const Error error = make_error(ExitCode::kUnavailable, 0,
                                 "{}; whether its processes have ended is not known: when they have, "
                                 "ckpt-restart --hosts {} brings the job back",
                                 result.error().message(), attempt_.path);
  end_.status = static_cast<int>(report(error));
  answer(answer_of_error(error));
}

// The processes of the other hosts have been let go. From here on the new host is like any host of the job.
Json Head::finish_move() {
  const auto runs = in_place_->release();
  in_place_.reset();
  if (!runs.ok()) {
    fails(runs.error().code, fmt::format("{}: the processes of {} came there, and were lost at once: {}",
                                         moving_->to(), moving_->from(), runs.error().message()));
    return {};
  }
  const int64_t stood = now_ns() - attempt_.told_at(cluster::Order::kStop);
  fmt::print(stderr, "ckpt: the processes of {} are on {} now; the job stood for {}\n",
             printable(moving_->from()), printable(moving_->to()), human_duration(stood));
  return {{"from", moving_->from()},        {"to", moving_->to()}, {"checkpoint", attempt_.path},
          {"hosts", attempt_.parts.size()}, {"in_place", true},    {"stood_ns", stood}};
}

}  // namespace ckpt::cli
