// ckpt keeper: a process that holds images in memory (docs/diskless.md).
#include <dirent.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>

#include "base/protocol/keeper_protocol.h"
#include "base/settings/settings.h"
#include "cli/image/jobs/job_images.h"
#include "cli/keeper/commands.h"
#include "cli/keeper/disk/disk_watch.h"
#include "cli/keeper/exchange_process.h"
#include "cli/keeper/start_keeper.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "cluster/keeper/striping.h"
#include "image/format/keeper_client.h"
#include "image/read/manifest.h"
#include "image/read/sources/image_catalog.h"

namespace ckpt::cli {

namespace {

using OrderedJson = nlohmann::ordered_json;

struct KeeperOptions {
  std::string name, memory, disk;
  uint32_t disk_every = 0;
  bool untouched = false, foreground = false, json = false;
};

Result<void> start(const KeeperOptions& o) {
  KeeperSettings settings;
  settings.name = o.name;
  settings.touch = !o.untouched;
  settings.foreground = o.foreground;
  if (!o.memory.empty()) {
    auto bytes = parse_size("--memory", o.memory.c_str());
    if (!bytes.ok()) return bytes.error();
    if (*bytes == 0)
      return failure(ExitCode::kUsage, "--memory", "must be more than 0", "give for example 4G");
    settings.memory_bytes = *bytes;
  }
  if (o.disk.empty() != (o.disk_every == 0))
    return failure(ExitCode::kUsage, o.disk.empty() ? "--disk-every" : "--disk", "is half of what is needed",
                   "give both: --disk DIR --disk-every N");
  if (o.disk_every != 0) {
    auto disk = disk_options(o.disk, o.disk_every);
    if (!disk.ok()) return disk.error();
    settings.disk = *disk;
  }
  return start_keeper(settings);
}

std::string title_of(const KeeperPath& path) {
  std::string_view name = path.text;
  name.remove_prefix(name.rfind('/') + 1);
  name.remove_suffix(kKeeperSuffix.size());
  return fmt::format("{}{}", kKeeperScheme, name);
}

// The one that is meant where none is named: `main`, or the only one that there is.
Result<std::string> only_keeper() {
  const std::string main(kDefaultKeeper);
  const std::string directory = keeper_path(geteuid(), main).text;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.substr(0, directory.rfind('/')).c_str()),
                                                closedir);
  std::vector<std::string> names;
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name.ends_with(kKeeperSuffix)) names.emplace_back(name.substr(0, name.size() - kKeeperSuffix.size()));
  }
  if (names.size() == 1) return names[0];
  // Of some that were killed the names are left.
  std::erase_if(names, [](const std::string& name) {
    return !ask_keeper(keeper_path(geteuid(), name).text, KeeperOperation::kStatus).ok();
  });
  if (names.empty() || std::find(names.begin(), names.end(), main) != names.end()) return main;
  if (names.size() == 1) return names[0];
  std::sort(names.begin(), names.end());
  std::string all;
  for (const std::string& name : names) all += " " + name;
  return failure(ExitCode::kUsage, "keeper", fmt::format("there are several:{}", all), "name one");
}

// A name, or keeper:NAME, which main() has made a path of this process by now.
Result<KeeperPath> path_of(const KeeperOptions& o) {
  if (!o.name.empty() && !is_keeper_name(o.name))
    return failure(ExitCode::kUsage, o.name, "is no name of a keeper",
                   "give the name alone, without keeper:");
  if (!o.name.empty()) return keeper_path(geteuid(), o.name);
  auto name = only_keeper();
  if (!name.ok()) return name.error();
  return keeper_path(geteuid(), *name);
}

// Checkpoints of jobs and images of single processes, complete ones.
Result<OrderedJson> held_by(const std::string& directory) {
  OrderedJson all = OrderedJson::array();
  for (const JobEntry& job : list_jobs(directory)) {
    if (!job.complete) continue;
    all.push_back({{"name", job.path.substr(job.path.rfind('/') + 1)},
                   {"processes", job.manifest.files.size()},
                   {"bytes", job.bytes},
                   {"increment", job.increment},
                   {"time_ns", job.manifest.time_ns}});
  }
  auto images = ImageCatalog::list(directory);
  if (!images.ok()) return images.error();
  for (const CatalogEntry& e : images->entries()) {
    if (!e.complete) continue;
    all.push_back({{"name", e.file},
                   {"processes", 1},
                   {"bytes", e.file_bytes},
                   {"increment", e.brief.parent.sequence != 0},
                   {"time_ns", e.brief.realtime_ns}});
  }
  return all;
}

// Of a job the newest checkpoint here, and its checks, if it has some. The keeper does not know which hosts
// hold the other parts, nor whether they are still there.
struct ChecksHere {
  int64_t time_ns = 0;
  std::string name, scheme;  // empty: it has no checks
  unsigned parts = 0, may_be_lost = 0, holders = 0;
};
std::vector<ChecksHere> protection_of(const std::string& directory) {
  std::map<std::string, ChecksHere> newest;
  for (const JobEntry& job : list_jobs(directory)) {
    if (!job.complete) continue;
    ChecksHere& p = newest[job.manifest.job];
    if (job.manifest.time_ns < p.time_ns) continue;
    p = {job.manifest.time_ns, job.path.substr(job.path.rfind('/') + 1), ""};
    std::ifstream in(directory + "/" + checks_of(p.name));
    std::string line;
    if (!std::getline(in, line)) continue;
    const Json head = Json::parse(line.c_str(), nullptr, false);
    if (!head.is_object()) continue;
    const std::string text = head.value("scheme", "");
    p.parts = head.value("hosts", 0u);
    auto scheme = keeper::scheme_for_hosts(text, p.parts);
    if (!scheme.ok()) continue;
    p.scheme = text;
    p.may_be_lost = redundancy::survives(*scheme);
    p.holders = static_cast<unsigned>(head.value("checks_on", std::vector<unsigned>()).size());
  }
  std::vector<ChecksHere> all;
  for (const auto& [job, p] : newest) all.push_back(p);
  return all;
}

std::string words_on(const ChecksHere& p) {
  if (p.scheme.empty()) return p.name + ": the end of the program; not that of the keeper or the host";
  return fmt::format(
      "{}: the end of the program; while all {} parts are there, that of the keepers of any {} (a "
      "host may have several)",
      p.name, p.parts, p.may_be_lost);
}

Result<void> status(const KeeperOptions& o) {
  auto path = path_of(o);
  if (!path.ok()) return path.error();
  auto answer = ask_keeper(path->text, KeeperOperation::kStatus);
  if (!answer.ok()) return answer.error();
  auto reached = reach_keeper_images(path->text);
  if (!reached.ok()) return reached.error();
  auto held = held_by(*reached);
  if (!held.ok()) return held.error();
  const DiskState disk = read_disk_state(*reached);
  const std::vector<ChecksHere> protection = protection_of(*reached);
  OrderedJson survives = OrderedJson::array(), of_jobs = OrderedJson::array();
  for (const ChecksHere& p : protection) {
    survives.push_back(words_on(p));
    if (p.scheme.empty()) continue;
    of_jobs.push_back(
        {{"newest", p.name}, {"scheme", p.scheme}, {"parts", p.parts}, {"may_be_lost", p.may_be_lost}});
  }
  if (survives.empty()) survives.push_back("the end of the program");
  if (o.json) {
    print_json({{"keeper", title_of(*path)},
                {"pid", answer->pid},
                {"since_ns", answer->since_ns},
                {"memory_bytes", answer->bound_bytes},
                {"used_bytes", answer->used_bytes},
                {"touched_bytes", answer->touched_bytes},
                {"huge_pages", answer->huge_pages != 0},
                {"held", *held},
                {"disk",
                 {{"every", disk.options.every},
                  {"directory", disk.options.directory},
                  {"saved", disk.saved},
                  {"error", disk.error}}},
                {"redundancy", of_jobs},
                {"survives", survives}});
    return {};
  }
  auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  fmt::print("{} (pid {})\n", title_of(*path), answer->pid);
  line("since", human_time(answer->since_ns));
  line("memory",
       fmt::format("{} of {} used{}", human_bytes(answer->used_bytes), human_bytes(answer->bound_bytes),
                   answer->huge_pages != 0 ? ", in huge pages where they fit" : ""));
  for (const OrderedJson& one : *held) {
    line("holds", fmt::format("{}  {}  {}{}", human_time(one["time_ns"].get<int64_t>()),
                              human_bytes(one["bytes"].get<uint64_t>()), one["name"].get<std::string>(),
                              one["increment"].get<bool>() ? ", an increment" : ""));
  }
  if (held->empty()) line("holds", "nothing yet");
  if (disk.options.every != 0) {
    line("to disk", fmt::format("every {}th, in {}", disk.options.every, disk.options.directory));
    if (!disk.saved.empty()) line("", fmt::format("{}  {}", human_time(disk.time_ns), disk.saved));
    if (!disk.error.empty()) line("", disk.error);
  }
  for (const ChecksHere& p : protection) {
    if (p.scheme.empty()) continue;
    line("redundancy",
         fmt::format("{}: {} over {} parts{}", p.name, p.scheme, p.parts,
                     p.holders == 0 ? "" : fmt::format(", its checks with {} of them", p.holders)));
  }
  for (const ChecksHere& p : protection) line("survives", words_on(p));
  if (protection.empty()) line("survives", "the end of the program; not that of the keeper or the host");
  return {};
}

Result<void> stop(const KeeperOptions& o) {
  auto path = path_of(o);
  if (!path.ok()) return path.error();
  auto answer = ask_keeper(path->text, KeeperOperation::kStatus);
  if (!answer.ok()) return answer.error();
  const ScopedFd process(static_cast<int>(syscall(SYS_pidfd_open, answer->pid, 0)));
  answer = ask_keeper(path->text, KeeperOperation::kStop);
  if (!answer.ok()) return answer.error();
  pollfd wait{process.get(), POLLIN, 0};
  if (process.valid() && poll(&wait, 1, 10'000) != 1)
    return failure(ExitCode::kTimeout, title_of(*path), "was told to stop and has not ended",
                   "look at the process");
  return {};
}

CLI::App* add_action(CLI::App* command, const std::shared_ptr<KeeperOptions>& o, ExitCode& exit,
                     const char* name, const char* description,
                     Result<void> (*action)(const KeeperOptions&)) {
  CLI::App* sub = command->add_subcommand(name, description);
  sub->add_option("NAME", o->name, "which one (default: main)");
  sub->callback([o, &exit, action] {
    auto done = action(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
  return sub;
}

}  // namespace

void add_keeper(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("keeper", "hold images in memory instead of on a disk");
  command->require_subcommand(1);
  auto o = std::make_shared<KeeperOptions>();
  CLI::App* starts = add_action(command, o, exit, "start", "start a keeper in the background", &start);
  starts->add_option("--memory", o->memory,
                     "the most that its images may take, for example 4G (default: half of all)");
  starts
      ->add_option("--disk-every", o->disk_every, "every N-th checkpoint of a program goes to --disk as well")
      ->option_text("N");
  starts->add_option("--disk", o->disk, "a directory for them")->option_text("DIR");
  starts->add_flag("--untouched", o->untouched, "do not touch the memory beforehand");
  starts->add_flag("--foreground", o->foreground, "be the keeper, until SIGTERM");
  CLI::App* shows =
      add_action(command, o, exit, "status", "what it holds, and what would survive what", &status);
  shows->add_flag("--json", o->json, "as JSON: times in ns, sizes in bytes");
  add_action(command, o, exit, "stop", "end it: all that it holds is gone", &stop);
  command->footer(
      "Images go to it with ckpt run --to keeper:NAME. ckpt ls, show, verify, back and ckpt-restart take "
      "keeper:NAME "
      "for\nits directory.\n"
      "Exit codes: 0 done, 64 wrong arguments, 69 no such keeper, one is there already, or no memory file "
      "system "
      "here,\n73 its directory in /tmp cannot be made, 75 it does not answer, 77 it is somebody else's.");
}

}  // namespace ckpt::cli
