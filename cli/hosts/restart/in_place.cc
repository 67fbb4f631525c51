#include "cli/hosts/restart/in_place.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/clock.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/restart/going_back.h"
#include "cli/hosts/restart/part_starts.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

class InPlace {
 public:
  InPlace(Crew& crew, const std::string& job, const std::string& directory, const HostsRun& run,
          const Places& places, std::vector<int> lost)
      : crew_(crew), job_(job), directory_(directory), run_(run), there_(places), lost_(std::move(lost)) {}

  // After an error the whole job is to be restarted: some of it may be gone by then.
  Result<void> run() {
    const std::string path = newest_to_go_on_from(directory_, job_);
    if (path.empty())
      return failure(ExitCode::kUnavailable, "the job", "has no checkpoint yet", "start it again");
    auto manifest = read_hosts_manifest(path);
    if (!manifest.ok()) return manifest.error();
    std::vector<std::string> small;
    for (std::set<std::string> leave = hosts_of(lost_, there_);;) {
      const std::vector<std::string> before = there_.where;
      CKPT_TRY(choose_hosts(path, leave));
      for (const int part : lost_) {
        const auto p = static_cast<size_t>(part);
        if (leave.contains(before[p])) crew_.replace(part, there_.where[p]);
      }
      bad_hosts_ = come_;
      bad_hosts_.insert(bad_hosts_.end(), small.begin(), small.end());
      CKPT_TRY(crew_.assemble());
      CKPT_TRY(crew_.check_alike());
      bad_hosts_ = small;
      const auto recovered = recover_all(crew_, directory_of(path), *manifest);
      if (recovered.ok()) break;
      leave.clear();
      for (const int part : lost_) {
        const CrewHost& host = crew_.hosts()[static_cast<size_t>(part)];
        if (host.no_room) leave.insert(host.where);
      }
      small.insert(small.end(), leave.begin(), leave.end());
      bad_hosts_ = small;
      // Nothing has gone back yet, so another spare may come in its place.
      if (leave.empty() || there_.spares.empty()) return recovered.error();
      fmt::print(stderr, "ckpt: {}\n", printable(recovered.error().message()));
    }
    auto starts = PartStarts::prepare(crew_, path, *manifest, run_, lost_);
    if (!starts.ok()) return starts.error();
    auto back = GoingBack::prepare(crew_, job_, path);
    if (!back.ok()) return back.error();
    back->take_in(lost_, *starts);
    auto done = back->run([] {
      return signal_to_end() == 0 ? Result<void>()
                                  : make_error(ExitCode::kUnavailable, 0, "the job is about to end");
    });
    const bool by_new = std::find(lost_.begin(), lost_.end(), back->failed_host()) != lost_.end();
    if (!done.ok() && by_new) bad_hosts_ = {there_.where[static_cast<size_t>(back->failed_host())]};
    if (!done.ok()) return done.error();
    table_ = starts->table();
    fmt::print(stderr, "ckpt: the job goes on from {} on {}; its processes stood for {}\n", printable(path),
               printable(fmt::format("{}", fmt::join(there_.where, ", "))),
               human_duration(done->value("pause_ns", int64_t{0})));
    return {};
  }

  const Places& places() const { return there_; }
  // Hosts that were to come, after an error that was theirs.
  const std::vector<std::string>& bad_hosts() const { return bad_hosts_; }
  const Json& table() const { return table_; }

 private:
  // leave: those of the lost parts that are gone, or too small for one.
  Result<void> choose_hosts(const std::string& path, const std::set<std::string>& leave) {
    // Of a host that has several parts one may be lost alone, with its agent.
    std::set<std::string> stay;
    for (size_t i = 0; i < there_.where.size(); ++i) {
      if (std::find(lost_.begin(), lost_.end(), static_cast<int>(i)) == lost_.end())
        stay.insert(there_.where[i]);
    }
    if (stay.empty() || !replace(leave, there_, &lost_))
      return failure(ExitCode::kUnavailable, "the job", "has no host left",
                     "ckpt-restart --hosts brings it back");
    come_.clear();
    for (const int part : lost_) come_.push_back(there_.where[static_cast<size_t>(part)]);
    const std::string left = printable(fmt::format("{}", fmt::join(leave, ", ")));
    fmt::print(stderr, "ckpt: {}: {}; the processes of {} go back in place to {}, those of {} come to {}\n",
               left, come_again_ ? "has no room for the part" : "gone",
               printable(fmt::format("{}", fmt::join(stay, ", "))), printable(path), left,
               printable(fmt::format("{}", fmt::join(come_, ", "))));
    come_again_ = true;
    return {};
  }

  Crew& crew_;
  const std::string &job_, &directory_;
  const HostsRun& run_;
  Places there_;
  const std::vector<int> lost_;
  std::vector<std::string> come_, bad_hosts_;
  bool come_again_ = false;  // others were to come before
  Json table_;
};

}  // namespace

Watched watch_in_place(Crew& crew, const std::string& job, Json table, const std::string& name,
                       const std::string& directory, const HostsRun& run, Places& places) {
  for (;;) {
    Watched end = watch_job(crew, job, table, name, directory, run);
    // Processes may have gone on elsewhere meanwhile (ckpt migrate).
    for (size_t i = 0; i < places.where.size(); ++i) places.where[i] = crew.hosts()[i].where;
    if (!run.recover || end.lost.empty() || !end.in_between) return end;
    const std::vector<int> lost = crew.find_gone();
    InPlace in_place(crew, job, directory, run, places, lost);
    if (auto r = in_place.run(); !r.ok()) {
      fmt::print(stderr, "ckpt: not in place: {}\n", printable(r.error().message()));
      if (const int signal = signal_to_end(); signal != 0) {
        end.lost.clear();
        end.exit = static_cast<ExitCode>(128 + signal);
        return end;
      }
      end.lost = lost;
      for (const std::string& host : in_place.bad_hosts()) std::erase(places.spares, host);
      for (const int part : crew.find_gone()) {
        if (std::find(lost.begin(), lost.end(), part) == lost.end())
          end.lost.push_back(part);
        else
          std::erase(places.spares,
                     crew.hosts()[static_cast<size_t>(part)].where);  // it did not come, or is gone too
      }
      return end;
    }
    count_deaths(hosts_of(lost, places).size());
    places = in_place.places();
    table = in_place.table();
    // Drops what hosts have said about going back. Users still wait for an answer, and the program may have
    // ended.
    for (CrewHost& host : crew.hosts()) {
      std::erase_if(host.early, [](const Json& said) {
        const std::string say = said.value("say", "");
        return say != "ask" && say != "ended";
      });
    }
  }
}

}  // namespace ckpt::cli
