#include "cli/hosts/recover.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/plan/best_interval.h"
#include "cli/keeper/disk_saves.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// Another host for each part that was on one of `dead`: a spare, or else whoever of the living has the fewest parts.
// False: nobody is left.
bool replace(const std::set<std::string>& dead, std::vector<std::string>& where,
             std::vector<std::string>& spares) {
  std::map<std::string, int> parts;
  for (const std::string& host : where) {
    if (!dead.contains(host)) ++parts[host];
  }
  for (std::string& host : where) {
    if (!dead.contains(host)) continue;
    if (!spares.empty()) {
      host = spares.front();
      spares.erase(spares.begin());
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

// Since the job was started or brought back by this head.
const int64_t began_ns = now_ns();
int64_t losses = 0;

}  // namespace

int64_t mtbf_of_job(const HostsRun& run, size_t hosts) {
  if (run.mtbf_ns != 0) return std::max<int64_t>(run.mtbf_ns / static_cast<int64_t>(hosts), 1'000'000);
  return losses == 0 ? AutoInterval::kMtbfNs : std::max<int64_t>((now_ns() - began_ns) / losses, 1'000'000);
}

ExitCode go_on(const std::string& directory, HostsRun run, std::vector<std::string> where, Watched end) {
  while (!end.lost.empty()) {
    std::set<std::string> dead;
    for (const int part : end.lost) dead.insert(where[static_cast<size_t>(part)]);
    losses += static_cast<int64_t>(dead.size());
    const std::string names = joined({dead.begin(), dead.end()});
    const std::string path = find_hosts_manifest(directory);
    if (path.empty())
      return report(failure(ExitCode::kUnavailable, names,
                            "is gone, and the job has no checkpoint yet to go on from", "start it again"));
    if (!replace(dead, where, run.spares))
      return report(failure(ExitCode::kUnavailable, names, "is gone, and no host is left",
                            "name others: ckpt-restart --hosts"));
    fmt::print(stderr, "ckpt: {}: gone; the job goes on from {} on {}\n", printable(names), printable(path),
               printable(joined(where)));
    end = bring_back(path, run, where);
    const std::string on_disk = find_hosts_manifest(directory + kOnDisk);
    if (end.ran || end.exit != ExitCode::kNotFound || !end.lost.empty() || on_disk.empty()) continue;
    fmt::print(stderr, "ckpt: the job goes on from {}, which is older\n", printable(on_disk));
    end = bring_back(on_disk, run, where);
  }
  return end.exit;
}

}  // namespace ckpt::cli
