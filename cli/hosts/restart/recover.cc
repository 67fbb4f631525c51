#include "cli/hosts/restart/recover.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/settings/best_interval.h"
#include "cli/hosts/checkpoints/disk_saves.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

// Since the job was started or brought back by this head.
const int64_t began_ns = now_ns();
constinit int64_t losses = 0;

}  // namespace

bool replace(const std::set<std::string>& dead, Places& places, const std::vector<int>* lost) {
  std::map<std::string, int> parts;
  for (const std::string& host : places.where) {
    if (!dead.contains(host)) ++parts[host];
  }
  for (size_t i = 0; i < places.where.size(); ++i) {
    std::string& host = places.where[i];
    const bool stays =
        lost != nullptr && std::find(lost->begin(), lost->end(), static_cast<int>(i)) == lost->end();
    if (stays || !dead.contains(host)) continue;
    if (!places.spares.empty()) {
      host = places.spares.front();
      places.spares.erase(places.spares.begin());
    } else if (!parts.empty()) {
      host = std::min_element(parts.begin(), parts.end(), [](const auto& one, const auto& other) {
               return one.second < other.second;
             })->first;
    } else {
      return false;
    }
    ++parts[host];
  }
  return true;
}

std::set<std::string> hosts_of(const std::vector<int>& parts, const Places& places) {
  std::set<std::string> hosts;
  for (const int part : parts) hosts.insert(places.where[static_cast<size_t>(part)]);
  return hosts;
}

void count_deaths(size_t hosts) { losses += static_cast<int64_t>(hosts); }

int64_t mtbf_of_job(const HostsRun& run, size_t hosts) {
  if (run.mtbf_ns != 0) return std::max<int64_t>(run.mtbf_ns / static_cast<int64_t>(hosts), 1'000'000);
  return losses == 0 ? AutoInterval::kMtbfNs : std::max<int64_t>((now_ns() - began_ns) / losses, 1'000'000);
}

namespace {

// All of it was ended at the checkpoint: on the new host, or else where it was.
Watched go_elsewhere(const HostsRun& run, Places& places, const Moved& moved) {
  const auto answer = [&moved](const Json& what) {
    if (moved.answer) moved.answer(what);
  };
  Places there = places;
  for (const int part : moved.parts) there.where[static_cast<size_t>(part)] = moved.to;
  Watched end = bring_back(moved.path, run, there, [&] {
    const int64_t stood = now_ns() - moved.stood_ns;
    fmt::print(stderr, "ckpt: the processes of {} are on {} now; the job stood for {}\n",
               printable(moved.from), printable(moved.to), human_duration(stood));
    answer({{"from", moved.from},
            {"to", moved.to},
            {"checkpoint", moved.path},
            {"hosts", there.where.size()},
            {"stood_ns", stood}});
  });
  if (end.ran) {
    places = std::move(there);
    return end;
  }
  const std::string why = fmt::format("{}: the job did not come back there", moved.to);
  if (end.told_to_run) {
    // Some of it may have run: not twice.
    report(failure(end.exit, moved.to, "the job came back, and was lost at once",
                   fmt::format("when nothing of it runs: ckpt-restart --hosts {}", moved.path)));
    answer({{"code", static_cast<int>(end.exit)}, {"error", why}});
    return end;
  }
  fmt::print(stderr, "ckpt: {}; it goes on where it was\n", printable(why));
  Watched back = bring_back(moved.path, run, places, [&] {
    answer({{"code", static_cast<int>(end.exit)}, {"error", why + "; it goes on where it was"}});
  });
  if (!back.ran && back.lost.empty())
    report(failure(back.exit, moved.path, "the job came back neither there nor where it was",
                   "when its hosts are well: ckpt-restart --hosts"));
  if (!back.ran) answer({{"code", static_cast<int>(back.exit)}, {"error", why + ", nor where it was"}});
  return back;
}

// The job was half way back to the checkpoint: a restart gets it there.
Watched restart_all(const HostsRun& run, Places& places, const Moved& moved) {
  const auto answer = [&moved](const Json& what) {
    if (moved.answer) moved.answer(what);
  };
  fmt::print(stderr, "ckpt: {}; all of it is restarted from {}\n", printable(moved.why_not_back),
             printable(moved.path));
  Watched end = bring_back(moved.path, run, places, [&] {
    answer({{"checkpoint", moved.path},
            {"hosts", places.where.size()},
            {"restarted", true},
            {"notes", {fmt::format("{}; all of it was restarted from the checkpoint", moved.why_not_back)}}});
  });
  if (!end.ran)
    answer({{"code", static_cast<int>(end.exit)},
            {"error",
             fmt::format("{}; nor could it be restarted: when its hosts are well, ckpt-restart --hosts {}",
                         moved.why_not_back, moved.path)}});
  return end;
}

}  // namespace

ExitCode go_on(const std::string& directory, const std::string& job, HostsRun run, Places places,
               Watched end) {
  std::set<std::string> small;  // too small for the part that they were to get
  while (!end.lost.empty() || end.moved) {
    if (end.ran) small.clear();
    if (end.moved) {
      const Moved moved = std::move(*end.moved);
      end = moved.why_not_back.empty() ? go_elsewhere(run, places, moved) : restart_all(run, places, moved);
      continue;
    }
    const std::set<std::string> dead = hosts_of(end.lost, places);
    if (end.no_room)
      small.insert(dead.begin(), dead.end());
    else
      count_deaths(dead.size());
    const std::string names = fmt::format("{}", fmt::join(dead, ", "));
    const std::string path = newest_to_go_on_from(directory, job);
    if (path.empty())
      return report(failure(ExitCode::kUnavailable, names,
                            "is gone, and the job has no checkpoint yet to go on from", "start it again"));
    if (end.no_room && !replace(small, places, &end.lost))
      return report(failure(ExitCode::kIo, names, "has no room for the lost part, and no other host is left",
                            "start a keeper there with more --memory; then ckpt-restart --hosts"));
    if (!end.no_room && !replace(dead, places))
      return report(failure(ExitCode::kUnavailable, names, "is gone, and no host is left",
                            "name others: ckpt-restart --hosts"));
    fmt::print(stderr, "ckpt: {}: {}; the job goes on from {} on {}\n", printable(names),
               end.no_room ? "has no room for the part" : "gone", printable(path),
               printable(fmt::format("{}", fmt::join(places.where, ", "))));
    end = bring_back(path, run, places);
    const std::string on_disk = newest_hosts_manifest(directory + kOnDisk, job);
    if (end.ran || end.exit != ExitCode::kNotFound || !end.lost.empty() || on_disk.empty()) continue;
    fmt::print(stderr, "ckpt: the job goes on from {}, which is older\n", printable(on_disk));
    end = bring_back(on_disk, run, places);
  }
  return end.exit;
}

}  // namespace ckpt::cli
