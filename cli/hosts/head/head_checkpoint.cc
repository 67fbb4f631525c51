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

Json Head::Attempt::steps_ns() const {
  Json steps;
  for (const cluster::Step step :
       {cluster::Step::kStanding, cluster::Step::kDrained, cluster::Step::kSampled}) {
    steps[cluster::name_of(step)] =
        told_at(cluster::order_to(cluster::next_step(step))) - told_at(cluster::order_to(step));
  }
  return steps;
}

void Head::begin_next() {
  if (!askers_.waiting() || machine_.phase() != cluster::HeadMachine::Phase::kIdle || askers_.served())
    return;
  askers_.serve_next();
  const Asker& asker = *askers_.served();
  attempt_.number = 1;
  if (asker.back) return go_back(*asker.back);
  if (asker.move) {
    auto moving = Moving::prepare(crew_, run_, *asker.move, asker.host);
    if (!moving.ok()) return answer(answer_of_error(moving.error()));
    moving_ = std::move(*moving);
  }
  begin();
}

void Head::begin() {
  why_ = {};
  posts_.begin();
  attempt_ = {.number = attempt_.number, .began_ns = now_ns()};
  attempt_.full = moving_ != nullptr || (!run_.redundancy.empty() && records_.next_is_full());
  attempt_.parts.resize(crew_.hosts().size());
  cluster::HeadMachine::Actions out;
  machine_.request(++last_id_, out);
  act(out);
}

void Head::act(const cluster::HeadMachine::Actions& actions) {
  using K = HeadAction::Kind;
  for (const HeadAction& a : actions) {
    switch (a.kind) {
      case K::kTell:
        if (int64_t& told = attempt_.told_ns[static_cast<size_t>(a.order)]; told == 0) told = now_ns();
        crew_.tell(a.host, {{"say", "order"},
                            {"id", a.id},
                            {"order", static_cast<int>(a.order)},
                            {"attempt", attempt_.number},
                            {"full", attempt_.full},
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
          fails(recorded.error().code, std::string(recorded.error().message()));
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
                  {"hosts", attempt_.parts.size()},
                  {"checkpoint", attempt_.path},
                  {"stop_ns", attempt_.pause_ns()},
                  {"steps_ns", attempt_.steps_ns()},
                  {"durable_ns", now_ns() - attempt_.began_ns},
                  {"connections", attempt_.connections.size()},
                  {"attempts", attempt_.number}};
        if (run_.every_auto) {
          automatic_.learn(attempt_.pause_ns(), now_ns() - attempt_.began_ns,
                           mtbf_of_job(run_, crew_.hosts().size()));
          plan_next();
          done["every_ns"] = automatic_.ns();
        }
        if (!attempt_.notes.empty()) done["notes"] = attempt_.notes;
        if (in_place_) done = finish_move();
        answer(why_.text.empty() ? std::move(done) : why_.answer());
        give_up_older();
        saves_.counts(recorded_);
        break;
      }
      case K::kFailed: {
        records_.failed();
        if (attempt_.again && attempt_.number < kAttempts && !current_lost()) {
          ++attempt_.number;
          begin();
          break;
        }
        if (why_.text.empty()) {
          fails(ExitCode::kUnavailable, a.host >= 0 ? fmt::format("{}: is not there any more", where(a.host))
                                                    : "the checkpoint was given up");
        }
        Json failed = why_.answer();
        if (why_.code == ExitCode::kNotRestartable) failed["why_not_restartable"] = attempt_.no_restart;
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
  if (!attempt_.no_restart.empty()) {
    attempt_.again = true;
    return make_error(ExitCode::kNotRestartable, 0, "{}", attempt_.no_restart[0]);
  }
  HostsManifest m;
  m.id = id;
  m.job = job_;
  m.name = name_;
  m.time_ns = now_ns(CLOCK_REALTIME);
  m.parts = attempt_.parts;
  m.connections = attempt_.connections;
  m.table = table_;
  for (const auto& p : m.parts) {
    if (p.directory.empty() || p.checksum.empty())
      return failure(ExitCode::kInternal, p.host, "its part has no manifest", "see its log");
  }
  m.run = remembered(run_);
  m.run["saves"] = saves_.noted(id);
  if (!run_.redundancy.empty()) {
    Redundancy wanted{run_.redundancy, run_.checks_on, run_.words};
    if (run_.words_of_full && attempt_.full) wanted.ground = records_.ground();
    auto redundancy = protect_parts(crew_, id, m.parts, wanted, [this, id] { return meanwhile(id); });
    if (!redundancy.ok()) return redundancy.error();
    m.redundancy = std::move(*redundancy);
    m.redundancy["needs"] = records_.needed(attempt_.full, how_protected(m.redundancy).by_differences);
  }
  if (run_.keeper_bytes != 0) m.redundancy["memory"] = run_.keeper_bytes;
  CKPT_TRY(write_hosts_manifest(directory_, m));
  attempt_.path = hosts_manifest_path(directory_, m);
  records_.counts(m, attempt_.full || run_.redundancy.empty());
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
