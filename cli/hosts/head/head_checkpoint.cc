// Leads a checkpoint of all hosts.
#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "cli/hosts/checkpoints/redundancy.h"
#include "cli/hosts/head/head_of_job.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/restart/recover.h"
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
    if (!moving.ok()) return answer(answer_of_error(moving.error()));
    moving_ = std::move(*moving);
  }
  begin();
}

void Head::begin() {
  why_.clear();
  no_restart_.clear();
  notes_.clear();
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
        } else if (moving_ != nullptr && move(a.id) == MoveEnd::kEnded) {
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
        if (!notes_.empty()) done["notes"] = notes_;
        if (in_place_) done = finish_move();
        answer(why_.empty() ? std::move(done) : Json{{"code", static_cast<int>(why_code_)}, {"error", why_}});
        give_up_older();
        saves_.counts(recorded_);
        break;
      }
      case K::kFailed: {
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
        Json failed{{"code", static_cast<int>(why_code_)}, {"error", why_}};
        if (why_code_ == ExitCode::kNotRestartable) failed["why_not_restartable"] = no_restart_;
        answer(std::move(failed));
        break;
      }
    }
  }
}

bool Head::current_lost() const {
  for (const CrewHost& h : crew_.hosts()) {
    if (!h.link.valid()) return true;
  }
  return false;
}

Result<void> Head::record(uint64_t id) {
  // The checkpoint would count, and could not come back. Another attempt may succeed: the reason may be a
  // connection that was not accepted yet.
  if (!no_restart_.empty()) {
    again_ = true;
    return make_error(ExitCode::kNotRestartable, 0, "{}", no_restart_[0]);
  }
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
  m.run["saves"] = saves_.noted(id);
  if (!run_.redundancy.empty()) {
    Redundancy wanted{run_.redundancy, run_.checks_on, run_.words};
    if (run_.words_of_full && full_) wanted.ground = records_.ground();
    auto redundancy = protect_parts(crew_, id, m.parts, wanted, [this, id] { return meanwhile(id); });
    if (!redundancy.ok()) return redundancy.error();
    m.redundancy = std::move(*redundancy);
    m.redundancy["needs"] = records_.needed(full_, how_protected(m.redundancy).by_differences);
  }
  if (run_.keeper_bytes != 0) m.redundancy["memory"] = run_.keeper_bytes;
  CKPT_TRY(write_hosts_manifest(directory_, m));
  path_ = hosts_manifest_path(directory_, m);
  records_.counts(m, full_ || run_.redundancy.empty());
  recorded_ = std::move(m);
  return {};
}

// First the older .hosts files, by which checkpoints count; the hosts then remove the parts. With redundancy
// a host does not know what the others need of its parts.
void Head::give_up_older() {
  const auto stay = records_.give_up_older();
  if (run_.redundancy.empty()) return;
  for (size_t i = 0; i < stay.size(); ++i)
    crew_.tell(static_cast<int>(i), {{"say", "stay"}, {"parts", stay[i]}});
}

}  // namespace ckpt::cli
