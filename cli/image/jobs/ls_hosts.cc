#include "cli/image/jobs/ls_hosts.h"

#include <fmt/ranges.h>

#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "base/protocol/keeper_protocol.h"
#include "cli/image/jobs/job_images.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

// A part that cannot be seen was durable when the checkpoint came to count. More is not known here.
const char* state_of(const HostsEntry& j) {
  if (!j.readable || j.problems.size() > j.locked) return "damaged";
  if (j.locked != 0) return "locked";
  return j.parts_here == j.manifest.parts.size() ? "complete" : "unseen";
}

bool is_there(const std::string& path) {
  struct stat st;
  return lstat(path.c_str(), &st) == 0;
}

void look_at_part(const HostsManifest::Part& part, HostsEntry& job) {
  const JobEntry here = examine_job(part.directory);
  const std::string manifest = part.directory + "/" + job::kManifestName;
  if (here.complete && checksum_of_file(manifest) == part.checksum) {
    ++job.parts_here;
    job.bytes += here.bytes;
  } else if (is_there(part.directory)) {
    job.problems.push_back(fmt::format("{}: {}", part.host,
                                       here.complete
                                           ? part.directory + ": is another part than the checkpoint names"
                                           : here.error.message()));
    job.locked += !here.complete && here.error.code == ExitCode::kPermission ? 1 : 0;
  } else if (is_there(part.directory.substr(0, part.directory.rfind('/')))) {
    // The host's directory is here, so this is where it was.
    job.problems.push_back(fmt::format("{}: {}: is missing", part.host, part.directory));
  }
}

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
      if (keeper_part(part.directory) == 0) look_at_part(part, job);  // a look for a keeper starts one
    }
    if (!job.problems.empty() && !is_there(path)) continue;  // the record went first, then the parts
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
    for (const std::string& problem : j.problems) fmt::print("{:>5}  {}\n", "", printable(problem));
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
      if (!j.problems.empty()) one["problems"] = j.problems;
    } else {
      one["problem"] = j.error;
    }
    json->push_back(std::move(one));
  }
}

}  // namespace ckpt::cli
