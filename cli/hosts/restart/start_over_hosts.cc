// A program is started, or brought back, as one job over several hosts.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/protocol/keeper_protocol.h"
#include "cli/hosts/checkpoints/disk_saves.h"
#include "cli/hosts/checkpoints/redundancy.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/head/head.h"
#include "cli/hosts/hosts.h"
#include "cli/hosts/job/adapters.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/placing.h"
#include "cli/hosts/restart/in_place.h"
#include "cli/hosts/restart/part_starts.h"
#include "cli/hosts/restart/recover.h"
#include "cli/starting/program.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

std::string new_job() {
  uint8_t id[16];
  (void)!getrandom(id, sizeof(id), 0);
  std::string text;
  for (uint8_t byte : id) text += fmt::format("{:02x}", byte);
  return text;
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

std::string name_for_files(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  return name;
}

// The lines of JSON between hosts, and the .hosts files, name them as text.
Result<void> check_text(const std::string& what, const std::string& name) {
  if (json_of_bytes(name).is_string()) return {};
  return failure(ExitCode::kUsage, what,
                 "has bytes that are no text (UTF-8), which cannot be named to other hosts",
                 "choose another name");
}

}  // namespace

void block_signals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t wanted;
  sigemptyset(&wanted);
  for (int s : {SIGUSR1, SIGINT, SIGTERM, SIGHUP}) {
    // A signal that the caller wants ignored (nohup) stays so: blocked, the signal would be kept, and read.
    struct sigaction as_it_is {};
    if (s != SIGUSR1 && sigaction(s, nullptr, &as_it_is) == 0 && as_it_is.sa_handler == SIG_IGN) continue;
    sigaddset(&wanted, s);
  }
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
}

ExitCode run_over_hosts(const HostsRun& run) {
  if (run.program.empty())
    return report(failure(ExitCode::kUsage, "run", "no program given",
                          "ckpt run --hosts h1,h2 -- PROGRAM [arguments]"));
  const std::string name = name_for_files(run.program[0]);
  block_signals();
  const auto dir = run.settings.find("CKPT_DIR");
  std::string directory = dir != run.settings.end() ? dir->second : fmt::format("ckpt-{}.{}", name, getpid());
  if (directory[0] != '/') directory = working_directory() + "/" + directory;
  if (auto r = check_text("the image directory", directory); !r.ok()) return report(r.error());
  for (const auto& [setting, value] : run.settings)
    if (auto r = check_text(setting, value); !r.ok()) return report(r.error());
  if (auto r = make_directory(directory); !r.ok()) return report(r.error());
  Crew crew(run.hosts, run.hosts, run.launch, run.silence_ms, run.recover);
  if (auto r = crew.assemble(); !r.ok()) return report(r.error());
  if (auto r = crew.check_alike(); !r.ok()) return report(r.error());
  for (const CrewHost& h : crew.hosts()) {
    if (const auto adapters = adapters_of(h); !adapters.empty())
      fmt::print(stderr, "ckpt: {}\n", printable(words_on_adapters(h.name, adapters)));
    if (auto r = check_settings_for_adapters(h.name, adapters_of(h), run.program); !r.ok())
      return report(r.error());
  }
  auto table = make_table(crew);
  if (!table.ok()) return report(table.error());
  (*table)["stop_timeout_ns"] = run.stop_timeout_ns;
  note_recovery(run, *table);
  const std::string job = new_job();
  for (size_t i = 0; i < crew.hosts().size(); ++i) {
    Json start{{"say", "start"},
               {"job", job},
               {"directory", directory + "/" + crew.hosts()[i].name},
               {"cwd", json_of_bytes(working_directory())},
               {"table", *table},
               {"settings", run.settings}};
    for (const auto& [variable, value] : run.allocation) start["allocation"][variable] = json_of_bytes(value);
    for (const auto& [variable, value] : run.mpi) start["mpi"][variable] = json_of_bytes(value);
    if (!run.keeper.empty()) {
      // Of each part its own: two that come to one host keep apart.
      start["keeper"] = fmt::format("{}-{}", run.keeper, i + 1);
      start["keeper_bytes"] = run.keeper_bytes;
    }
    for (size_t w = 0; i == 0 && w < run.program.size(); ++w)
      start["program"].push_back(json_of_bytes(run.program[w]));
    crew.tell(static_cast<int>(i), start);
  }
  auto started = crew.expect_all("started", 10'000'000'000);
  if (!started.ok()) return report(started.error());
  Places places{run.hosts, run.spares};
  Watched end = watch_in_place(crew, job, *table, name, directory, run, places);
  crew.dismiss();
  return go_on(directory, job, run, std::move(places), std::move(end));
}

ExitCode restart_over_hosts(const std::string& checkpoint, HostsRun run) {
  std::string path;
  auto manifest = read_hosts_checkpoint(checkpoint, &path);
  if (!manifest.ok()) return report(manifest.error());
  const size_t parts = manifest->parts.size();
  for (size_t i = parts; i < run.hosts.size(); ++i)
    fmt::print(stderr, "ckpt-restart: {} is not needed: the checkpoint has {} parts\n", run.hosts[i], parts);
  Places places{place_parts(parts, run.hosts), run.spares};
  const std::string directory = directory_of(path);
  const bool on_disk = manifest->run.value("on_disk", false);
  Watched end = bring_back(path, run, places);
  return go_on(on_disk && directory.ends_with(kOnDisk) ? directory_of(directory) : directory, manifest->job,
               run, std::move(places), std::move(end));
}

Watched bring_back(const std::string& path, HostsRun run, Places& places, const std::function<void()>& runs) {
  auto manifest = read_hosts_manifest(path);
  if (!manifest.ok()) return {report(manifest.error())};
  std::vector<std::string> names;
  for (const auto& p : manifest->parts) names.push_back(p.host);
  run.stop_timeout_ns = manifest->table.value("stop_timeout_ns", run.stop_timeout_ns);
  block_signals();
  Crew crew(names, places.where, run.launch, manifest->run.value("silence_ms", run.silence_ms), run.recover);
  // If a host has died meanwhile, and the job goes on without it, the caller needs only to know which host.
  bool told_to_run = false;
  const auto failed = [&](const Error& error) {
    Watched end{report(error)};
    end.told_to_run = told_to_run;
    if (!run.recover || signal_to_end() != 0) return end;
    end.lost = crew.find_gone();
    if (!end.lost.empty()) return end;
    for (size_t i = 0; i < crew.hosts().size(); ++i) {
      if (crew.hosts()[i].no_room) end.lost.push_back(static_cast<int>(i));
    }
    end.no_room = !end.lost.empty();
    return end;
  };
  if (auto r = crew.assemble(); !r.ok()) return failed(r.error());
  if (auto r = crew.check_alike(); !r.ok()) return failed(r.error());
  const std::string directory = directory_of(path);
  if (auto r = recover_all(crew, directory, *manifest); !r.ok()) return failed(r.error());
  run.redundancy = manifest->redundancy.value("scheme", "");
  run.keeper_bytes = manifest->redundancy.value("memory", uint64_t{0});
  remember(manifest->run, run);
  auto starts = PartStarts::prepare(crew, path, *manifest, run);
  if (!starts.ok()) return failed(starts.error());
  for (size_t i = 0; i < names.size(); ++i) crew.tell(static_cast<int>(i), starts->of(i));
  // All listen before anybody connects. The kernel may keep a port for a minute for the killed program.
  constexpr int64_t kListenNs = 120'000'000'000, kLoadNs = 600'000'000'000;
  if (auto all = crew.expect_all("listening", kListenNs); !all.ok()) return failed(all.error());
  crew.tell_all({{"say", "connect"}});
  // No process runs before all are there: it might look for one that is not there yet.
  if (auto all = crew.expect_all("ready", kLoadNs); !all.ok()) return failed(all.error());
  told_to_run = true;
  crew.tell_all({{"say", "go"}});
  if (auto all = crew.expect_all("started", kLoadNs); !all.ok()) return failed(all.error());
  if (runs) runs();
  Watched end =
      watch_in_place(crew, manifest->job, starts->table(), manifest->name, starts->home(), run, places);
  end.ran = true;
  crew.dismiss();
  return end;
}

}  // namespace ckpt::cli
