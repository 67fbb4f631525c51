// A program is started, or brought back, as one job over several hosts.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/protocol/keeper_protocol.h"
#include "cli/hosts/crew.h"
#include "cli/hosts/head.h"
#include "cli/hosts/placing.h"
#include "cli/hosts/recover.h"
#include "cli/keeper/disk_saves.h"
#include "cli/keeper/protect.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

std::string new_job() {
  uint8_t id[16];
  (void)!getrandom(id, sizeof(id), 0);
  std::string text;
  for (uint8_t byte : id) text += fmt::format("{:02x}", byte);
  return text;
}

std::string here() {
  char cwd[4096];
  return getcwd(cwd, sizeof(cwd)) != nullptr ? cwd : "/";
}

// Where each host's ckpt-on listens, and a key for these connections.
Result<Json> make_table(Crew& crew) {
  crew.tell_all({{"say", "listen"}});
  auto ports = crew.expect_all("listening", 10'000'000'000);
  if (!ports.ok()) return ports.error();
  Json table{{"secret", cluster::hex_of(cluster::make_secret())}, {"hosts", Json::array()}};
  for (size_t i = 0; i < crew.hosts().size(); ++i) {
    CrewHost& h = crew.hosts()[i];
    h.port = (*ports)[i].value("port", 0);
    // The job's addresses stay these, wherever it comes back.
    table["hosts"].push_back(
        {{"name", h.name}, {"address", h.address}, {"job_address", h.address}, {"port", h.port}});
  }
  return table;
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Result<void> make_directory(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0700);
  struct stat st;
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return failure(ExitCode::kCannotCreate, path, fmt::format("cannot be created: {}", strerror(errno)),
                   "name another with --dir");
  if (stat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
      (st.st_mode & 022) != 0)
    return failure(ExitCode::kPermission, path, "is no directory of yours alone",
                   "chmod go-w it, or name another with --dir");
  return {};
}

std::string base_name(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  return name;
}

// Both ends of each, and the address of the part at each, as the job knows it.
Json connections_of(const HostsManifest& manifest) {
  Json all = Json::array();
  const auto address_of = [&](const std::string& part) -> std::string {
    for (const auto& h : manifest.table["hosts"]) {
      if (h.value("name", "") == part) return h.value("job_address", h.value("address", ""));
    }
    return "";
  };
  for (const auto& c : manifest.connections)
    all.push_back({c.one, c.other, address_of(c.part_of_one), address_of(c.part_of_other)});
  return all;
}

// The parts of this checkpoint, and before them those of the checkpoints that it needs.
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

// Where several parts come to one host: shares out the ports, which cannot be had twice.
Result<void> share_hosts(Crew& crew, const HostsManifest& manifest, Json& table) {
  const auto shares = who_shares(table);
  std::vector<std::vector<int>> ports(shares.size());
  if (std::find(shares.begin(), shares.end(), true) != shares.end()) {
    for (size_t i = 0; i < shares.size(); ++i)
      crew.tell(static_cast<int>(i), {{"say", "look"}, {"part", manifest.parts[i].directory}});
    auto parts = crew.expect_all("part", 120'000'000'000);
    if (!parts.ok()) return parts.error();
    for (size_t i = 0; i < shares.size(); ++i) ports[i] = (*parts)[i].value("ports", std::vector<int>());
  }
  share_ports(table, manifest.table, ports);
  return {};
}

}  // namespace

void block_signals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t wanted;
  sigemptyset(&wanted);
  for (int s : {SIGUSR1, SIGINT, SIGTERM, SIGHUP}) sigaddset(&wanted, s);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
}

ExitCode run_over_hosts(const HostsRun& run) {
  if (run.program.empty())
    return report(failure(ExitCode::kUsage, "run", "no program given",
                          "ckpt run --hosts h1,h2 -- PROGRAM [arguments]"));
  const std::string name = base_name(run.program[0]);
  if (name == "srun") {
    return report(failure(ExitCode::kUnsupported, "srun",
                          "starts processes that are connected to slurmstepd, which is outside of the job",
                          "start them with mpirun"));
  }
  block_signals();
  const auto dir = run.settings.find("CKPT_DIR");
  std::string directory = dir != run.settings.end() ? dir->second : fmt::format("ckpt-{}.{}", name, getpid());
  if (directory[0] != '/') directory = here() + "/" + directory;
  if (auto r = make_directory(directory); !r.ok()) return report(r.error());
  Crew crew(run.hosts, run.hosts, run.launch);
  if (auto r = crew.assemble(); !r.ok()) return report(r.error());
  if (auto r = crew.check_alike(); !r.ok()) return report(r.error());
  auto table = make_table(crew);
  if (!table.ok()) return report(table.error());
  (*table)["stop_timeout_ns"] = run.stop_timeout_ns;
  const std::string job = new_job();
  for (size_t i = 0; i < crew.hosts().size(); ++i) {
    Json start{{"say", "start"}, {"job", job},      {"directory", directory + "/" + crew.hosts()[i].name},
               {"cwd", here()},  {"table", *table}, {"settings", run.settings}};
    if (!run.keeper.empty()) {
      // Of each part its own: two that come to one host keep apart.
      start["keeper"] = fmt::format("{}-{}", run.keeper, i + 1);
      start["keeper_bytes"] = run.keeper_bytes;
    }
    if (i == 0) start["program"] = run.program;
    crew.tell(static_cast<int>(i), start);
  }
  auto started = crew.expect_all("started", 10'000'000'000);
  if (!started.ok()) return report(started.error());
  const Watched end = watch_job(crew, job, *table, name, directory, run);
  crew.dismiss();
  return go_on(directory, run, run.hosts, end);
}

ExitCode restart_over_hosts(const std::string& checkpoint, HostsRun run) {
  const std::string path = find_hosts_manifest(checkpoint);
  if (path.empty())
    return report(failure(ExitCode::kNotFound, checkpoint, "has no checkpoint of several hosts",
                          "name its directory or its .hosts file"));
  auto manifest = read_hosts_manifest(path);
  if (!manifest.ok()) return report(manifest.error());
  const size_t parts = manifest->parts.size();
  for (size_t i = parts; i < run.hosts.size(); ++i)
    fmt::print(stderr, "ckpt-restart: {} is not needed: the checkpoint has {} parts\n", run.hosts[i], parts);
  const std::vector<std::string> hosts = place_parts(parts, run.hosts);
  const std::string directory = directory_of(path);
  const bool on_disk = manifest->run.value("on_disk", false);
  return go_on(on_disk && directory.ends_with(kOnDisk) ? directory_of(directory) : directory, run, hosts,
               bring_back(path, run, hosts));
}

Watched bring_back(const std::string& path, HostsRun run, const std::vector<std::string>& hosts,
                   const std::function<void()>& runs) {
  auto manifest = read_hosts_manifest(path);
  if (!manifest.ok()) return {report(manifest.error())};
  std::vector<std::string> names;
  for (const auto& p : manifest->parts) names.push_back(p.host);
  run.stop_timeout_ns = manifest->table.value("stop_timeout_ns", run.stop_timeout_ns);
  block_signals();
  Crew crew(names, hosts, run.launch);
  // Of another host's death meanwhile only the host matters, where the job is to go on without it.
  bool told_to_run = false;
  const auto failed = [&](const Error& error) {
    const ExitCode code = report(error);
    return Watched{code, run.recover ? crew.find_gone() : std::vector<int>(), false, told_to_run};
  };
  if (auto r = crew.assemble(); !r.ok()) return failed(r.error());
  if (auto r = crew.check_alike(); !r.ok()) return failed(r.error());
  Json table = manifest->table;
  for (size_t i = 0; i < names.size(); ++i) {
    // The rest of the table stays: its key and ports are in the memory of processes.
    for (auto& h : table["hosts"]) {
      if (h.value("name", "") != names[i]) continue;
      if (!h.contains("job_address")) h["job_address"] = h["address"];
      h["address"] = crew.hosts()[i].address;
    }
  }
  const std::string directory = directory_of(path);
  if (auto r = recover_all(crew, directory, *manifest); !r.ok()) return failed(r.error());
  run.redundancy = manifest->redundancy.value("scheme", "");
  run.keeper_bytes = manifest->redundancy.value("memory", uint64_t{0});
  remember(manifest->run, run);
  // Beside the .hosts file, as when the job began; those of checkpoints on a disk are one directory below.
  const bool on_disk = manifest->run.value("on_disk", false);
  std::string home = on_disk && directory.ends_with(kOnDisk) ? directory_of(directory) : directory;
  if (home[0] != '/') home = here() + "/" + home;
  if (auto r = share_hosts(crew, *manifest, table); !r.ok()) return failed(r.error());
  const std::vector<bool> shares = who_shares(table);
  const std::string token = cluster::hex_of(cluster::make_secret());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& p = manifest->parts[i];
    const bool kept = keeper_part(p.directory) != 0;
    const std::string local =
        kept || on_disk ? fmt::format("{}/{}", home, p.host) : p.directory.substr(0, p.directory.rfind('/'));
    const Json plan{{"was", address_lines(manifest->table, names[i])},
                    {"is", address_lines(table, names[i])},
                    {"shared", static_cast<bool>(shares[i])},
                    {"connections", connections_of(*manifest)},
                    {"token", token}};
    Json start{{"say", "start"},      {"job", manifest->job},   {"directory", local},
               {"cwd", here()},       {"table", table},         {"settings", Json::object()},
               {"part", p.directory}, {"checksum", p.checksum}, {"plan", plan}};
    if (on_disk) {
      // Where its processes have their images.
      start["keeper"] = fmt::format("{}-{}", run.keeper, i + 1);
      start["keeper_bytes"] = run.keeper_bytes;
    }
    crew.tell(static_cast<int>(i), start);
  }
  // All listen before anybody connects. The kernel may keep a port for a minute for the killed program.
  if (auto all = crew.expect_all("listening", 120'000'000'000); !all.ok()) return failed(all.error());
  crew.tell_all({{"say", "connect"}});
  // No process runs before all are there: it might look for one that is not there yet.
  if (auto all = crew.expect_all("ready", 600'000'000'000); !all.ok()) return failed(all.error());
  told_to_run = true;
  crew.tell_all({{"say", "go"}});
  if (auto all = crew.expect_all("started", 600'000'000'000); !all.ok()) return failed(all.error());
  if (runs) runs();
  Watched end = watch_job(crew, manifest->job, table, manifest->name, home, run);
  end.ran = true;
  crew.dismiss();
  return end;
}

}  // namespace ckpt::cli
