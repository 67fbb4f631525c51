#include "cli/hosts/going_back.h"

#include <poll.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/clock.h"
#include "cli/hosts/placing.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// Of one step, of the slowest host: reading large images takes its time. Behind the decision a slow one is not to be killed: it is there as
// long as its agent is.
constexpr int64_t kStepNs = 120'000'000'000, kDecidedStepNs = 3600'000'000'000;
constexpr int kLookMs = 20;

// As `ckpt back-part` says them (cli/back/job). The decision is behind "ready".
constexpr const char* kSteps[] = {"prepared",  "standing",  "ready",    "barrier 1",
                                  "barrier 2", "barrier 3", "barrier 4"};
constexpr const char* kDecisive = "ready";

}  // namespace

std::optional<std::string> back_wish_in(const Json& question) {
  if (!question.contains("back")) return std::nullopt;
  const Json& back = question["back"];
  return back.is_object() ? back.value("checkpoint", "") : "";
}

GoingBack::GoingBack(Crew& crew, HostsManifest manifest, std::string path)
    : crew_(crew), manifest_(std::move(manifest)), path_(std::move(path)), number_([] {
        static uint64_t attempts = 0;
        return ++attempts;
      }()) {}

Result<GoingBack> GoingBack::prepare(Crew& crew, const HostsRun& run, const Json& table,
                                     const std::string& job, const std::string& path) {
  const std::string found = find_hosts_manifest(path);
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
  if (!run.keeper.empty())
    return failure(ExitCode::kUnsupported, "back", "images of this job are in the memory of keepers",
                   "end the job, and bring it back with ckpt-restart --hosts");
  const auto shares = who_shares(table);
  if (std::find(shares.begin(), shares.end(), true) != shares.end())
    return failure(ExitCode::kUnsupported, "back",
                   "several parts of this job are on one host, in namespaces of their own",
                   "end the job, and bring it back with ckpt-restart --hosts");
  for (const CrewHost& h : crew.hosts()) {
    if (!h.link.valid())
      return failure(ExitCode::kUnavailable, h.where, "its agent is gone",
                     "ckpt-restart --hosts brings the job back");
  }
  return GoingBack(crew, std::move(*manifest), found);
}

Result<Json> GoingBack::run(const std::function<Result<void>()>& meanwhile) {
  Json connections = Json::array();
  for (const auto& c : manifest_.connections) connections.push_back({c.one, c.other});
  for (size_t i = 0; i < manifest_.parts.size(); ++i) {
    const auto& part = manifest_.parts[i];
    crew_.tell(static_cast<int>(i), {{"say", "back"},
                                     {"plan",
                                      {{"id", number_},
                                       {"host", part.host},
                                       {"part", part.directory},
                                       {"checksum", part.checksum},
                                       {"connections", connections}}}});
  }
  auto done = all_steps(meanwhile);
  if (!done.ok() && !decided_) crew_.tell_all({{"say", "back_stop"}});
  return done;
}

Result<Json> GoingBack::all_steps(const std::function<Result<void>()>& meanwhile) {
  for (const char* step : kSteps) {
    auto said = hear_all("back_step", step, meanwhile);
    if (!said.ok()) return said.error();
    if (step == std::string_view(kDecisive)) {
      CKPT_TRY(check_connections(*said));
      decided_ = true;
    }
    crew_.tell_all({{"say", "back_go"}, {"step", step}});
  }
  auto done = hear_all("back_done", "", meanwhile);
  if (!done.ok()) return done.error();
  Json sum{{"checkpoint", path_},
           {"id", manifest_.id},
           {"hosts", done->size()},
           {"pause_ns", 0},
           {"connections", manifest_.connections.size()},
           {"notes", Json::array()}};
  for (const Json& one : *done) {
    for (const char* what : {"members", "ended", "threads", "bytes"})
      sum[what] = sum.value(what, uint64_t{0}) + one.value(what, uint64_t{0});
    sum["pause_ns"] = std::max(sum.value("pause_ns", uint64_t{0}), one.value("pause_ns", uint64_t{0}));
    for (const Json& note : one.value("notes", Json::array())) sum["notes"].push_back(note);
  }
  return sum;
}

// One end alone would wait for the other's bytes.
Result<void> GoingBack::check_connections(const std::vector<Json>& said) const {
  std::set<std::pair<std::string, std::string>> ends;
  for (const Json& one : said) {
    for (const Json& c : one.value("connections", Json::array()))
      ends.insert({c.at(0).get<std::string>(), c.at(1).get<std::string>()});
  }
  for (const auto& c : manifest_.connections) {
    const bool one = ends.contains({c.one, c.other}), other = ends.contains({c.other, c.one});
    if (one && other) continue;
    return failure(ExitCode::kUnsupported, fmt::format("{} and {}", c.part_of_one, c.part_of_other),
                   fmt::format("have a connection of which no process of {} has the end any more",
                               one ? c.part_of_other : c.part_of_one),
                   "nothing was changed; end the job, and bring it back with ckpt-restart --hosts");
  }
  return {};
}

Result<std::vector<Json>> GoingBack::hear_all(const std::string& say, const std::string& step,
                                              const std::function<Result<void>()>& meanwhile) {
  auto& hosts = crew_.hosts();
  std::vector<Json> all(hosts.size());
  std::vector<std::vector<Json>> others(hosts.size());
  std::optional<Error> error;
  const int64_t deadline = now_ns() + (decided_ && say != "gone" ? kDecidedStepNs : kStepNs);
  const auto missing = [&] { return std::find(all.begin(), all.end(), Json()); };
  while (missing() != all.end() && !error) {
    std::vector<pollfd> polls;
    for (size_t i = 0; i < hosts.size(); ++i)
      polls.push_back({all[i].is_null() && hosts[i].link.valid() ? hosts[i].link.fd() : -1, POLLIN, 0});
    (void)!poll(polls.data(), polls.size(), kLookMs);
    if (auto r = meanwhile(); !r.ok()) error = r.error();
    for (size_t i = 0; i < hosts.size() && !error; ++i) {
      if (!all[i].is_null() || (hosts[i].early.empty() && polls[i].revents == 0 && hosts[i].link.valid()))
        continue;
      std::vector<Json> messages;
      const bool there = crew_.hear(static_cast<int>(i), messages);
      for (Json& j : messages) {
        const bool of_us = j.value("id", uint64_t{0}) == number_;
        // Where the processes are being ended, the parts that did it fail.
        if (of_us && j.value("say", "") == "back_failed" && say == "gone") continue;
        if (of_us && j.value("say", "") == "back_failed" && !error) {
          error = make_error(static_cast<ExitCode>(j.value("code", 70)), 0, "{}: {}", hosts[i].where,
                             j.value("text", ""));
        } else if (of_us && j.value("say", "") == say && all[i].is_null() &&
                   (step.empty() || j.value("step", "") == step)) {
          all[i] = std::move(j);
        } else {
          others[i].push_back(std::move(j));
        }
      }
      if (!there && all[i].is_null() && !error)
        error = failure(ExitCode::kUnavailable, hosts[i].where, "its agent is gone", "look at that host");
    }
    if (!error && missing() != all.end() && now_ns() > deadline)
      error = failure(ExitCode::kTimeout, hosts[static_cast<size_t>(missing() - all.begin())].where,
                      fmt::format("was not {} in time", step.empty() ? "done" : step), "look at that host");
  }
  for (size_t i = 0; i < hosts.size(); ++i)
    hosts[i].early.insert(hosts[i].early.end(), others[i].begin(), others[i].end());
  if (error) return *error;
  return all;
}

Result<void> GoingBack::end_all() {
  crew_.tell_all({{"say", "back_end"}, {"id", number_}});
  auto gone = hear_all("gone", "", [] { return Result<void>(); });
  if (!gone.ok()) return gone.error();
  for (size_t i = 0; i < gone->size(); ++i) {
    if (!(*gone)[i].value("yes", false))
      return failure(ExitCode::kTimeout, crew_.hosts()[i].where, "its processes could not be ended",
                     "look at that host");
  }
  return {};
}

}  // namespace ckpt::cli
