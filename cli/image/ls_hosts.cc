#include "cli/image/ls_hosts.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/clock.h"
#include "cli/image/job_images.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

const char* state_of(const HostsEntry& j) { return j.readable ? "complete" : "damaged"; }

std::vector<std::string> hosts_of(const HostsEntry& j) {
  std::vector<std::string> names;
  for (const auto& part : j.manifest.parts) names.push_back(part.host);
  return names;
}

uint64_t number_in_name(const std::string& path) {
  const std::string stem = path.substr(0, path.size() - std::string_view(kHostsSuffix).size());
  return strtoull(stem.substr(stem.rfind('.') + 1).c_str(), nullptr, 10);
}

}  // namespace

std::vector<HostsEntry> list_hosts_jobs(const std::string& directory) {
  std::vector<HostsEntry> jobs;
  for (const std::string& path : hosts_manifests_in(directory)) {
    HostsEntry job;
    job.path = path;
    job.sequence = number_in_name(path);
    auto manifest = read_hosts_manifest(path);
    if (!manifest.ok() && manifest.error().code == ExitCode::kNotFound) continue;  // removed meanwhile
    job.readable = manifest.ok();
    if (manifest.ok())
      job.manifest = std::move(*manifest);
    else
      job.error = manifest.error().message();
    for (const auto& part : job.manifest.parts) {
      const JobEntry here = examine_job(part.directory);
      if (!here.complete) continue;
      ++job.parts_here;
      job.bytes += here.bytes;
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void print_hosts_jobs(const std::vector<HostsEntry>& jobs) {
  const int64_t now = now_ns(CLOCK_REALTIME);
  for (const HostsEntry& j : jobs) {
    fmt::print("{:>5}  {:<16} {:>7}  {:>11}  {:>9}  {:>9}  {:>9}  {:<10}  {:<5}  {:<10}  {}\n", j.sequence,
               printable(j.readable ? j.manifest.name : "-"), "-",
               j.readable ? human_duration(std::max<int64_t>(now - j.manifest.time_ns, 0)) : "-", "-",
               j.parts_here != 0 ? human_bytes(j.bytes) : "-", "-",
               j.readable ? fmt::format("{} hosts", j.manifest.parts.size()) : "hosts", "-", state_of(j),
               printable(j.path));
    if (!j.readable) {
      fmt::print("{:>5}  {}\n", "", printable(j.error));
      continue;
    }
    fmt::print("{:>5}  of {}", "", printable(fmt::format("{}", fmt::join(hosts_of(j), ", "))));
    if (j.parts_here < j.manifest.parts.size())
      fmt::print("; {} of {} parts can be seen from here", j.parts_here, j.manifest.parts.size());
    fmt::print("\n");
  }
}

void add_hosts_jobs_json(const std::vector<HostsEntry>& jobs, nlohmann::ordered_json* json) {
  for (const HostsEntry& j : jobs) {
    nlohmann::ordered_json one{{"hosts_job", j.path}, {"sequence", j.sequence}, {"state", state_of(j)}};
    if (j.readable) {
      one["program"] = j.manifest.name;
      one["job_id"] = j.manifest.job;
      one["realtime_ns"] = j.manifest.time_ns;
      one["hosts"] = hosts_of(j);
      one["parts_here"] = j.parts_here;
      one["bytes"] = j.bytes;
    } else {
      one["problem"] = j.error;
    }
    json->push_back(std::move(one));
  }
}

}  // namespace ckpt::cli
