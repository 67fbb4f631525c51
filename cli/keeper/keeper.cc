// ckpt keeper: a process that holds images in memory (docs/diskless.md).
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "base/protocol/keeper_protocol.h"
#include "base/settings/settings.h"
#include "cli/commands.h"
#include "cli/image/job_images.h"
#include "cli/keeper/start_keeper.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "image/format/keeper_client.h"
#include "image/read/image_catalog.h"

namespace ckpt::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string name, memory;
  bool untouched = false, foreground = false, json = false;
};

Result<void> start(const Options& o) {
  KeeperWishes wishes;
  wishes.name = o.name;
  wishes.touch = !o.untouched;
  wishes.foreground = o.foreground;
  if (!o.memory.empty()) {
    auto bytes = parse_size("--memory", o.memory.c_str());
    if (!bytes.ok()) return bytes.error();
    if (*bytes == 0)
      return failure(ExitCode::kUsage, "--memory", "must be more than 0", "give for example 4G");
    wishes.memory_bytes = *bytes;
  }
  return start_keeper(wishes);
}

std::string title_of(const Options& o) {
  return std::string(kKeeperScheme) + (o.name.empty() ? std::string(kDefaultKeeper) : o.name);
}

// A name, or keeper:NAME, which main() has made a path of this process by now.
Result<KeeperPath> path_of(const Options& o) {
  if (!o.name.empty() && !is_keeper_name(o.name))
    return failure(ExitCode::kUsage, o.name, "is no name of a keeper",
                   "give the name alone, without keeper:");
  return keeper_path(geteuid(), o.name);
}

// Checkpoints of jobs and images of single processes, complete ones.
Result<Json> held_by(const std::string& path) {
  auto directory = reach_kept_images(path);
  if (!directory.ok()) return directory.error();
  Json all = Json::array();
  for (const JobEntry& job : list_jobs(*directory)) {
    if (!job.complete) continue;
    all.push_back({{"name", job.path.substr(job.path.rfind('/') + 1)},
                   {"processes", job.manifest.files.size()},
                   {"bytes", job.bytes},
                   {"increment", job.increment},
                   {"time_ns", job.manifest.time_ns}});
  }
  auto images = ImageCatalog::list(*directory);
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

Result<void> status(const Options& o) {
  auto path = path_of(o);
  if (!path.ok()) return path.error();
  auto answer = ask_keeper(path->text, KeeperOperation::kStatus);
  if (!answer.ok()) return answer.error();
  auto held = held_by(path->text);
  if (!held.ok()) return held.error();
  if (o.json) {
    print_json({{"keeper", title_of(o)},
                {"pid", answer->pid},
                {"since_ns", answer->since_ns},
                {"memory_bytes", answer->bound_bytes},
                {"used_bytes", answer->used_bytes},
                {"touched_bytes", answer->touched_bytes},
                {"huge_pages", answer->huge_pages != 0},
                {"held", *held},
                {"survives", {"the end of the program"}}});
    return {};
  }
  auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  fmt::print("{} (pid {})\n", title_of(o), answer->pid);
  line("since", human_time(answer->since_ns));
  line("memory",
       fmt::format("{} of {} used{}", human_bytes(answer->used_bytes), human_bytes(answer->bound_bytes),
                   answer->huge_pages != 0 ? ", in huge pages where they fit" : ""));
  for (const Json& one : *held) {
    line("holds", fmt::format("{}  {}  {}{}", human_time(one["time_ns"].get<int64_t>()),
                              human_bytes(one["bytes"].get<uint64_t>()), one["name"].get<std::string>(),
                              one["increment"].get<bool>() ? ", an increment" : ""));
  }
  if (held->empty()) line("holds", "nothing yet");
  line("survives", "the end of the program; not that of the keeper or the host");
  return {};
}

Result<void> stop(const Options& o) {
  auto path = path_of(o);
  if (!path.ok()) return path.error();
  auto answer = ask_keeper(path->text, KeeperOperation::kStatus);
  if (!answer.ok()) return answer.error();
  const ScopedFd process(static_cast<int>(syscall(SYS_pidfd_open, answer->pid, 0)));
  answer = ask_keeper(path->text, KeeperOperation::kStop);
  if (!answer.ok()) return answer.error();
  pollfd wait{process.get(), POLLIN, 0};
  if (process.valid() && poll(&wait, 1, 10'000) != 1)
    return failure(ExitCode::kTimeout, title_of(o), "was told to stop and has not ended",
                   "look at the process");
  return {};
}

CLI::App* add_action(CLI::App* command, const std::shared_ptr<Options>& o, ExitCode& exit, const char* name,
                     const char* description, Result<void> (*action)(const Options&)) {
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
  auto o = std::make_shared<Options>();
  CLI::App* starts = add_action(command, o, exit, "start", "start a keeper in the background", &start);
  starts->add_option("--memory", o->memory,
                     "the most that its images may take, for example 4G (default: half of all)");
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
