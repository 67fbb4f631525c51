#include "cli/hosts/restart/going_back.h"

#include <poll.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/clock.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/placing.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// How long the slowest host may take for one step: reading large images takes its time. Behind the decision a
// slow host is not to be killed: it is there as long as its agent is. Where a new host takes part, each step
// may take as long as a restart (kRestartNs), behind the decision, too.
constexpr int64_t kStepNs = 120'000'000'000, kRestartNs = 600'000'000'000, kDecidedStepNs = 3600'000'000'000;
constexpr int kBackLookMs = 20;

// As `ckpt back-part` says them (cli/back/job). When all have said "ready", it is decided. "listening": only
// where a new host takes part.
constexpr const char* kSteps[] = {"prepared",  "standing",  "listening", "ready",
                                  "barrier 1", "barrier 2", "barrier 3", "barrier 4"};
constexpr const char *kListening = "listening", *kDecisive = "ready", *kLast = "barrier 4", *kDone = "done",
                     *kGone = "gone";

}  // namespace

std::optional<std::string> back_wish_in(const Json& question) {
  if (!question.contains("back")) return std::nullopt;
  const Json& back = question["back"];
  return back.is_object() ? back.value("checkpoint", "") : "";
}

GoingBack::GoingBack(Crew& crew, HostsManifest manifest, std::string path)
    : crew_(crew), manifest_(std::move(manifest)), path_(std::move(path)), number_([] {
        static constinit uint64_t attempts = 0;
        return ++attempts;
      }()) {}

Result<GoingBack> GoingBack::prepare(Crew& crew, const std::string& job, const std::string& path) {
  std::vector<std::string> passed_over;
  std::string found = newest_hosts_manifest(path, job, &passed_over);
  if (found.empty()) found = find_hosts_manifest(path);
  if (found.empty())
    return failure(ExitCode::kNotFound, path, "has no checkpoint of several hosts",
                   "take one with ckpt now, or name a .hosts file");
  auto manifest = read_hosts_manifest(found);
  if (!manifest.ok()) return manifest.error();
  bool same = manifest->job == job && manifest->parts.size() == crew.hosts().size();
  for (size_t i = 0; same && i < manifest->parts.size(); ++i)
    same = manifest->parts[i].host == crew.hosts()[i].name;
  if (!same)
    return failure(ExitCode::kUsage, found, "is a checkpoint of another job", "name one of this job");
  for (const CrewHost& h : crew.hosts()) {
    if (!h.link.valid())
      return failure(ExitCode::kUnavailable, h.where, "its agent is gone",
                     "ckpt-restart --hosts brings the job back");
  }
  GoingBack back(crew, std::move(*manifest), found);
  back.passed_over_ = std::move(passed_over);
  return back;
}

void GoingBack::take_in(std::vector<int> parts, const PartStarts& starts) {
  new_ = std::move(parts);
  starts_ = &starts;
}

bool GoingBack::leads_to_new(const HostsManifest::Connection& c) const {
  return std::any_of(new_.begin(), new_.end(), [&](int i) {
    const std::string& name = manifest_.parts[static_cast<size_t>(i)].host;
    return name == c.part_of_one || name == c.part_of_other;
  });
}

void GoingBack::tell_plans() {
  Json connections = Json::array();
  for (const auto& c : manifest_.connections) {
    if (!leads_to_new(c)) connections.push_back({c.one, c.other});
  }
  for (size_t i = 0; i < manifest_.parts.size(); ++i) {
    const auto& part = manifest_.parts[i];
    Json order{{"say", "back"},
               {"plan",
                {{"id", number_},
                 {"host", part.host},
                 {"part", part.directory},
                 {"checksum", part.checksum},
                 {"connections", connections}}}};
    if (!new_.empty()) {
      order["plan"]["lost"] = starts_->plan(i, starts_->connections_of(new_));
      order["table"] = starts_->table();
    }
    const int host = static_cast<int>(i);
    crew_.tell(host, is_new(host) ? starts_->of(i) : order);
  }
}

Result<Json> GoingBack::run(const std::function<Result<void>()>& meanwhile) {
  tell_plans();
  auto done = all_steps(meanwhile);
  if (!done.ok() && !decided_) crew_.tell_all({{"say", "back_stop"}});
  return done;
}

// No process on a new host runs before those of the others have gone back.
void GoingBack::tell_step(const std::string& step) {
  for (size_t i = 0; i < manifest_.parts.size(); ++i) {
    const int host = static_cast<int>(i);
    if (!is_new(host))
      crew_.tell(host, {{"say", "back_go"}, {"step", step}});
    else if (step == kListening)
      crew_.tell(host, {{"say", "connect"}});
    else if (step == kLast)
      crew_.tell(host, {{"say", "go"}});
  }
  told_to_go_ = step == kLast;
}

Result<Json> GoingBack::all_steps(const std::function<Result<void>()>& meanwhile) {
  for (const std::string step : kSteps) {
    if (step == kListening && new_.empty()) continue;
    auto said = hear_all(step, meanwhile);
    if (!said.ok()) return said.error();
    if (step == kDecisive) {
      CKPT_TRY(check_connections(*said));
      decided_ = true;
    }
    tell_step(step);
  }
  auto done = hear_all(kDone, meanwhile);
  if (!done.ok()) return done.error();
  Json sum{{"checkpoint", path_},
           {"id", manifest_.id},
           {"hosts", done->size()},
           {"pause_ns", 0},
           {"connections", manifest_.connections.size()},
           {"notes", passed_over_}};
  for (const Json& one : *done) {
    for (const char* what : {"members", "ended", "threads", "bytes"})
      sum[what] = sum.value(what, uint64_t{0}) + one.value(what, uint64_t{0});
    sum["pause_ns"] = std::max(sum.value("pause_ns", uint64_t{0}), one.value("pause_ns", uint64_t{0}));
    for (const Json& note : one.value("notes", Json::array())) sum["notes"].push_back(note);
  }
  return sum;
}

// Both ends of each connection must be there: an end alone would wait for the other's bytes.
Result<void> GoingBack::check_connections(const std::vector<Json>& said) const {
  std::set<std::pair<std::string, std::string>> ends;
  for (const Json& one : said) {
    for (const Json& c : one.value("connections", Json::array()))
      ends.insert({c.at(0).get<std::string>(), c.at(1).get<std::string>()});
  }
  for (const auto& c : manifest_.connections) {
    if (leads_to_new(c)) continue;  // it was made anew, with both ends
    const bool one = ends.contains({c.one, c.other}), other = ends.contains({c.other, c.one});
    if (one && other) continue;
    return failure(ExitCode::kUnsupported, fmt::format("{} and {}", c.part_of_one, c.part_of_other),
                   fmt::format("have a connection of which no process of {} has the end any more",
                               one ? c.part_of_other : c.part_of_one),
                   "nothing was changed; end the job, and bring it back with ckpt-restart --hosts");
  }
  return {};
}

GoingBack::Expected GoingBack::expected_of(int part, const std::string& step) const {
  if (step == kGone) return {kGone, ""};
  if (!is_new(part)) return step == kDone ? Expected{"back_done", ""} : Expected{"back_step", step};
  return {step == kListening || step == kDecisive ? step : step == kDone ? "started" : "", ""};
}

Result<void> GoingBack::take(int host, Json said, const Expected& expected, Json& wanted,
                             std::vector<Json>& others) const {
  const std::string say = said.value("say", "");
  const std::string& where = crew_.hosts()[static_cast<size_t>(host)].where;
  const bool of_us = is_new(host) || said.value("id", uint64_t{0}) == number_;
  const bool failed = (of_us && say == "back_failed") || (is_new(host) && say == "cannot");
  // Where the processes are being ended, the parts that did it fail.
  if (failed && expected.say == kGone) return {};
  if (failed)
    return make_error(static_cast<ExitCode>(said.value("code", 70)), 0, "{}: {}", where,
                      said.value("text", ""));
  if (say == "ended" && !new_.empty() && expected.say != kGone && !told_to_go_)
    return failure(ExitCode::kUnavailable, where,
                   fmt::format("its first process has ended with {}", said.value("status", 0)),
                   "see the words above");
  if (of_us && say == expected.say && wanted.is_null() &&
      (expected.step.empty() || said.value("step", "") == expected.step))
    wanted = std::move(said);
  else
    others.push_back(std::move(said));
  return {};
}

Result<std::vector<Json>> GoingBack::hear_all(const std::string& step,
                                              const std::function<Result<void>()>& meanwhile) {
  auto& hosts = crew_.hosts();
  std::vector<Json> all(hosts.size());
  std::vector<std::vector<Json>> others(hosts.size());
  std::vector<Expected> expected;
  for (size_t i = 0; i < hosts.size(); ++i) {
    expected.push_back(expected_of(static_cast<int>(i), step));
    if (expected[i].say.empty()) all[i] = Json::object();
  }
  std::optional<Error> error;
  const int64_t patience = !new_.empty() ? kRestartNs : decided_ && step != kGone ? kDecidedStepNs : kStepNs;
  const int64_t deadline = now_ns() + patience;
  const auto missing = [&] { return std::find(all.begin(), all.end(), Json()); };
  while (missing() != all.end() && !error) {
    std::vector<pollfd> polls;
    for (size_t i = 0; i < hosts.size(); ++i)
      polls.push_back({all[i].is_null() && hosts[i].link.valid() ? hosts[i].link.fd() : -1, POLLIN, 0});
    (void)!poll(polls.data(), polls.size(), kBackLookMs);
    if (auto r = meanwhile(); !r.ok()) error = r.error();
    for (size_t i = 0; i < hosts.size() && !error; ++i) {
      if (!all[i].is_null() || (hosts[i].early.empty() && polls[i].revents == 0 && hosts[i].link.valid()))
        continue;
      std::vector<Json> messages;
      const int host = static_cast<int>(i);
      const bool there = crew_.hear(host, messages);
      for (Json& j : messages) {
        auto taken = take(host, std::move(j), expected[i], all[i], others[i]);
        if (taken.ok() || error) continue;
        error = taken.error();
        failed_host_ = host;
      }
      if (!there && all[i].is_null() && !error) {
        error = failure(ExitCode::kUnavailable, hosts[i].where, "its agent is gone", "look at that host");
        failed_host_ = host;
      }
    }
    if (!error && missing() != all.end() && now_ns() > deadline) {
      failed_host_ = static_cast<int>(missing() - all.begin());
      error = failure(ExitCode::kTimeout, hosts[static_cast<size_t>(failed_host_)].where,
                      fmt::format("was not {} in time", step), "look at that host");
    }
  }
  for (size_t i = 0; i < hosts.size(); ++i)
    hosts[i].early.insert(hosts[i].early.end(), others[i].begin(), others[i].end());
  if (error) return *error;
  return all;
}

Result<void> GoingBack::end_all() {
  crew_.tell_all({{"say", "back_end"}, {"id", number_}});
  auto gone = hear_all(kGone, [] { return Result<void>(); });
  if (!gone.ok()) return gone.error();
  for (size_t i = 0; i < gone->size(); ++i) {
    if (!(*gone)[i].value("yes", false))
      return failure(ExitCode::kTimeout, crew_.hosts()[i].where, "its processes could not be ended",
                     "look at that host");
  }
  return {};
}

}  // namespace ckpt::cli
