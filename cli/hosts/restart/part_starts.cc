#include "cli/hosts/restart/part_starts.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "base/protocol/keeper_protocol.h"
#include "cli/hosts/checkpoints/disk_saves.h"
#include "cli/hosts/checkpoints/redundancy.h"
#include "cli/hosts/head/hear_each.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/placing.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// Longer than an agent takes for any other word: it reads what its images say of their sockets, from a disk
// that all hosts may read from now.
constexpr int64_t kPortsOfPartNs = 120'000'000'000;

// Where several parts are on one host: shares out the ports, which cannot be had twice.
Result<void> share_hosts(Crew& crew, const HostsManifest& manifest, Json& table,
                         const std::vector<int>& come) {
  const auto gets = who_gets_ports(table, come);
  std::vector<std::vector<int>> ports(gets.size());
  std::vector<AwaitedWord> words(gets.size());
  for (size_t i = 0; i < gets.size(); ++i) {
    if (!gets[i]) continue;
    words[i] = {"part"};
    crew.tell(static_cast<int>(i), {{"say", "look"}, {"part", manifest.parts[i].directory}});
  }
  const auto look_for_end = []() -> Result<void> {
    if (signal_to_end() == 0) return {};
    return make_error(static_cast<ExitCode>(128 + signal_to_end()), 0, "the job is about to end");
  };
  auto said = HearEach{crew, kPortsOfPartNs, look_for_end}.hear(words);
  if (!said.ok()) return said.error();
  for (size_t i = 0; i < gets.size(); ++i) {
    if (gets[i]) ports[i] = (*said)[i].value("ports", std::vector<int>());
  }
  share_ports(table, manifest.table, ports, come);
  return {};
}

// The rest of the table stays: its key and ports are in the memory of processes.
Json table_now(const Json& was, const std::vector<CrewHost>& hosts) {
  Json table = was;
  for (const CrewHost& host : hosts) {
    for (auto& h : table["hosts"]) {
      if (h.value("name", "") != host.name) continue;
      if (!h.contains("job_address")) h["job_address"] = h["address"];
      h["address"] = host.address;
    }
  }
  return table;
}

}  // namespace

std::string working_directory() {
  char cwd[4096];
  return getcwd(cwd, sizeof(cwd)) != nullptr ? cwd : "/";
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Result<void> recover_all(Crew& crew, const std::string& directory, const HostsManifest& manifest) {
  std::string names;
  for (const uint64_t id : needed_by(manifest)) {
    HostsManifest older = manifest;
    older.id = id;
    auto read = read_hosts_manifest(hosts_manifest_path(directory, older));
    if (!read.ok()) return read.error();
    if (read->id != id || read->job != manifest.job || read->parts.size() != manifest.parts.size())
      return failure(ExitCode::kImageDamaged, hosts_manifest_path(directory, older),
                     "is not the one that the checkpoint needs", "use an older checkpoint");
    auto computed = recover_parts(crew, *read, [] { return Result<void>(); });
    if (!computed.ok()) return computed.error();
    if (!computed->empty()) names = *computed;
  }
  auto computed = recover_parts(crew, manifest, [] { return Result<void>(); });
  if (!computed.ok()) return computed.error();
  if (!computed->empty()) names = *computed;
  if (!names.empty())
    fmt::print(stderr, "ckpt: the part of {} was computed from those of the other hosts\n", names);
  return {};
}

void note_recovery(const HostsRun& run, Json& table) {
  table.erase("silence_ms");
  // The head notices that a host has died, and its processes come back elsewhere: ckpt-on waits for that.
  constexpr int kSilenceMs = 300'000;
  if (run.recover) table["silence_ms"] = kSilenceMs;
}

Result<PartStarts> PartStarts::prepare(Crew& crew, const std::string& path, const HostsManifest& manifest,
                                       const HostsRun& run, std::vector<int> come) {
  PartStarts starts;
  starts.manifest_ = manifest;
  starts.run_ = run;
  starts.table_ = table_now(manifest.table, crew.hosts());
  note_recovery(run, starts.table_);
  starts.on_disk_ = manifest.run.value("on_disk", false);
  const std::string directory = directory_of(path);
  starts.home_ = starts.on_disk_ && directory.ends_with(kOnDisk) ? directory_of(directory) : directory;
  if (starts.home_[0] != '/') starts.home_ = working_directory() + "/" + starts.home_;
  if (come.empty()) {
    come.resize(manifest.parts.size());
    std::iota(come.begin(), come.end(), 0);
  }
  CKPT_TRY(share_hosts(crew, manifest, starts.table_, come));
  starts.shares_ = who_shares(starts.table_);
  starts.token_ = cluster::hex_of(cluster::make_secret());
  return starts;
}

bool PartStarts::any_shares_host() const {
  return std::find(shares_.begin(), shares_.end(), true) != shares_.end();
}

Json PartStarts::connections_of(const std::vector<int>& with) const {
  const auto address_of = [&](const std::string& part) -> std::string {
    for (const auto& h : manifest_.table["hosts"]) {
      if (h.value("name", "") == part) return h.value("job_address", h.value("address", ""));
    }
    return "";
  };
  const auto is_with = [&](const std::string& part) {
    return std::any_of(with.begin(), with.end(),
                       [&](int i) { return manifest_.parts[static_cast<size_t>(i)].host == part; });
  };
  Json all = Json::array();
  for (const auto& c : manifest_.connections) {
    if (with.empty() || is_with(c.part_of_one) || is_with(c.part_of_other))
      all.push_back({c.one, c.other, address_of(c.part_of_one), address_of(c.part_of_other)});
  }
  return all;
}

Json PartStarts::plan(size_t part, Json connections) const {
  const std::string& name = manifest_.parts[part].host;
  return {{"was", address_lines(manifest_.table, name)},
          {"is", address_lines(table_, name)},
          {"shared", static_cast<bool>(shares_[part])},
          {"connections", std::move(connections)},
          {"token", token_}};
}

Json PartStarts::of(size_t part) const {
  const auto& p = manifest_.parts[part];
  const bool in_keeper = keeper_part(p.directory) != 0;
  const std::string local = in_keeper || on_disk_ ? fmt::format("{}/{}", home_, p.host)
                                                  : p.directory.substr(0, p.directory.rfind('/'));
  Json start{{"say", "start"},
             {"job", manifest_.job},
             {"directory", local},
             {"cwd", json_of_bytes(working_directory())},
             {"table", table_},
             {"settings", Json::object()},
             {"part", p.directory},
             {"checksum", p.checksum},
             {"plan", plan(part, connections_of({}))}};
  for (const std::string& word : run_.restart_words) start["words"].push_back(json_of_bytes(word));
  if (on_disk_) {
    // Where its processes have their images.
    start["keeper"] = fmt::format("{}-{}", run_.keeper, part + 1);
    start["keeper_bytes"] = run_.keeper_bytes;
  }
  return start;
}

}  // namespace ckpt::cli
