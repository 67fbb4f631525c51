// Leads a checkpoint of all hosts, and what follows one: the job goes back in place, or goes on elsewhere.
#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "cli/hosts/head/head_of_job.h"
#include "cli/hosts/restart/going_back.h"
#include "cli/hosts/restart/recover.h"
#include "cli/keeper/protect.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

using cluster::HeadAction;
using cluster::Order;

constexpr int64_t kPrepareNs = 60'000'000'000;  // writing takes as long as it takes

}  // namespace

void Head::begin_next() {
  if (!askers_.waiting() || machine_.phase() != cluster::HeadMachine::Phase::kIdle || askers_.served())
    return;
  askers_.serve_next();
  const Asker& asker = *askers_.served();
  attempt_ = 1;
  if (asker.back) return go_back(*asker.back);
  if (asker.move) {
    auto moving = Moving::prepare(crew_, run_, *asker.move, asker.host);
    if (!moving.ok()) return answer(said_of_error(moving.error()));
    moving_ = std::move(*moving);
  }
  begin();
}

void Head::begin() {
  why_.clear();
  again_ = false;
  bookmarks_.clear();
  posts_.begin();
  drained_ = 0;
  parts_.assign(crew_.hosts().size(), {});
  began_ns_ = now_ns();
  stop_ns_ = pause_ns_ = 0;
  full_ = moving_ != nullptr || (!run_.redundancy.empty() && records_.next_is_full());
  cluster::HeadMachine::Actions out;
  machine_.request(++last_id_, out);
  act(out);
}

void Head::act(const cluster::HeadMachine::Actions& actions) {
  using K = HeadAction::Kind;
  for (const HeadAction& a : actions) {
    switch (a.kind) {
      case K::kTell:
        if (a.order == Order::kStop && stop_ns_ == 0) stop_ns_ = now_ns();
        if (a.order == Order::kGo && pause_ns_ == 0) pause_ns_ = now_ns() - stop_ns_;
        crew_.tell(a.host, {{"say", "order"},
                            {"id", a.id},
                            {"order", static_cast<int>(a.order)},
                            {"attempt", attempt_},
                            {"full", full_},
                            {"stays", moving_ != nullptr},
                            {"leave_out", askers_.served() ? askers_.served()->leave_out : ""}});
        break;
      case K::kSetTimer:
        deadline_ns_ = a.order == Order::kGo
                           ? 0
                           : now_ns() + (a.order == Order::kPrepare ? kPrepareNs : 3 * run_.stop_timeout_ns);
        break;
      case K::kStopTimer:
        deadline_ns_ = 0;
        break;
      case K::kRecord: {
        auto recorded = record(a.id);
        if (!recorded.ok()) {
          why_ = std::string(recorded.error().message());
          why_code_ = recorded.error().code;
        } else if (moving_ != nullptr && move(a.id)) {
          return;
        }
        cluster::HeadMachine::Actions more;
        machine_.recorded(recorded.ok(), more);
        act(more);
        break;
      }
      case K::kSucceeded: {
        Json done{{"id", a.id},
                  {"hosts", parts_.size()},
                  {"checkpoint", path_},
                  {"stop_ns", pause_ns_},
                  {"durable_ns", now_ns() - began_ns_},
                  {"connections", connections_.size()},
                  {"attempts", attempt_}};
        if (run_.every_auto) {
          automatic_.learn(pause_ns_, now_ns() - began_ns_, mtbf_of_job(run_, crew_.hosts().size()));
          plan_next();
          done["every_ns"] = automatic_.ns();
        }
        answer(why_.empty() ? std::move(done) : Json{{"code", static_cast<int>(why_code_)}, {"error", why_}});
        give_up_older();
        saves_.counts(recorded_);
        break;
      }
      case K::kFailed:
        records_.failed();
        if (again_ && attempt_ < kAttempts && !current_lost()) {
          ++attempt_;
          begin();
          break;
        }
        if (why_.empty()) {
          why_ = a.host >= 0 ? fmt::format("{}: is not there any more", where(a.host))
                             : "the checkpoint was given up";
          why_code_ = ExitCode::kUnavailable;
        }
        answer({{"code", static_cast<int>(why_code_)}, {"error", why_}});
        break;
    }
  }
}

bool Head::current_lost() const {
  for (const CrewHost& h : crew_.hosts()) {
    if (!h.link.valid()) return true;
  }
  return false;
}

// The job's processes go back in place. Those of some hosts may not get there when others have: then all are restarted from the
// same checkpoint, where they are.
void Head::go_back(const std::string& wish) {
  auto back = GoingBack::prepare(crew_, table_, job_, wish.empty() ? directory_ : wish);
  if (!back.ok()) return answer(said_of_error(back.error()));
  auto done = back->run([this, &back] { return back->was_decided() ? Result<void>() : meanwhile(0); });
  if (done.ok()) return answer(std::move(*done));
  if (!back->was_decided()) {
    Json said = said_of_error(done.error());
    said["error"] = fmt::format("{}; the job goes on as it was", done.error().message());
    return answer(std::move(said));
  }
  ended_ = true;
  why_ = fmt::format("the job was half way back when this failed: {}", done.error().message());
  why_code_ = done.error().code;
  askers_.answer_on_host({{"code", static_cast<int>(why_code_)},
                          {"error", fmt::format("{}; all of it is restarted from {}", why_, back->path())}});
  if (auto gone = back->end_all(); !gone.ok()) {
    // A host has died: with --recover it is taken for dead, and all of the job goes on without it.
    if (run_.recover) lost_ = crew_.find_gone();
    if (!lost_.empty()) return answer({{"code", static_cast<int>(why_code_)}, {"error", why_}});
    const Error error = make_error(ExitCode::kUnavailable, 0,
                                   "{}; whether its processes have ended is not known ({}): when they have, "
                                   "ckpt-restart --hosts {} brings the job back",
                                   why_, gone.error().message(), back->path());
    status_ = static_cast<int>(report(error));
    return answer(said_of_error(error));
  }
  moved_ = Moved{{}, "", "", back->path(), now_ns(), askers_.take_connection(), why_};
}

// The checkpoint counts, and all stand. True: nothing of the job runs any more, and it is to come back. False: it goes on as it was.
bool Head::move(uint64_t id) {
  bool decided = false;
  Result<void> result = moving_->bring(parts_, [this, id] { return meanwhile(id); });
  if (result.ok()) {
    result = moving_->end_all(id, [this, &decided] {
      decided = true;
      // Its agent ends with the processes.
      askers_.answer_on_host({{"from", moving_->from()}, {"to", moving_->to()}, {"checkpoint", path_}});
    });
  }
  if (!result.ok() && !decided) {
    why_ = fmt::format("{}; the job goes on where it was", result.error().message());
    why_code_ = result.error().code;
    return false;
  }
  ended_ = true;
  why_ = "the job's processes are on their way to another host (ask again)";
  why_code_ = ExitCode::kUnavailable;
  Moved moved{moving_->parts(), moving_->from(), moving_->to(), path_, stop_ns_, {}, ""};
  if (!result.ok()) {
    // Some of it may run there still: it must not run twice.
    const Error error = make_error(ExitCode::kUnavailable, 0,
                                   "{}; whether its processes have ended is not known: when they have, "
                                   "ckpt-restart --hosts {} brings the job back",
                                   result.error().message(), path_);
    status_ = static_cast<int>(report(error));
    answer(said_of_error(error));
    return true;
  }
  moved.answer = askers_.take_connection();
  moved_ = std::move(moved);
  return true;
}

Result<void> Head::record(uint64_t id) {
  HostsManifest m;
  m.id = id;
  m.job = job_;
  m.name = name_;
  m.time_ns = now_ns(CLOCK_REALTIME);
  m.parts = parts_;
  m.connections = connections_;
  m.table = table_;
  for (const auto& p : m.parts) {
    if (p.directory.empty() || p.checksum.empty())
      return failure(ExitCode::kInternal, p.host, "its part has no manifest", "see its log");
  }
  m.run = remembered(run_);
  if (!run_.redundancy.empty()) {
    auto redundancy =
        protect_parts(crew_, id, m.parts, run_.redundancy, [this, id] { return meanwhile(id); });
    if (!redundancy.ok()) return redundancy.error();
    m.redundancy = std::move(*redundancy);
    m.redundancy["needs"] = records_.needed(full_);
  }
  if (run_.keeper_bytes != 0) m.redundancy["memory"] = run_.keeper_bytes;
  CKPT_TRY(write_hosts_manifest(directory_, m));
  path_ = find_hosts_manifest(directory_);
  records_.counts(m, full_ || run_.redundancy.empty());
  recorded_ = std::move(m);
  return {};
}

// First the older .hosts files, by which checkpoints count; the hosts then remove the parts. With redundancy a host does not
// know what the others need of its parts.
void Head::give_up_older() {
  const auto stay = records_.give_up_older();
  if (run_.redundancy.empty()) return;
  for (size_t i = 0; i < stay.size(); ++i)
    crew_.tell(static_cast<int>(i), {{"say", "stay"}, {"parts", stay[i]}});
}

}  // namespace ckpt::cli
