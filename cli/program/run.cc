// ckpt run: start a program under the checkpointer, after checks that LD_PRELOAD alone cannot make.
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <memory>

#include "base/protocol/beside_protocol.h"
#include "base/protocol/keeper_protocol.h"
#include "base/settings/settings_table.h"
#include "cli/hosts/hosts.h"
#include "cli/hosts/job/adapters.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/job/mpi_launcher.h"
#include "cli/hosts/job/mpi_settings.h"
#include "cli/hosts/job/slurm.h"
#include "cli/hosts/job/where_it_starts.h"
#include "cli/keeper/start_keeper.h"
#include "cli/program/commands.h"
#include "cli/starting/preload.h"
#include "cli/starting/program.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "cluster/keeper/striping.h"
#include "image/format/encryption/image_key.h"
#include "plugins/trusted.h"

namespace ckpt::cli {

namespace {

// Options as text, by the name of the variable that carries them: the library's own parser judges them.
using SettingTexts = std::map<std::string, std::string>;

const char* lookup_setting(const char* name, void* context) {
  const auto& texts = *static_cast<const SettingTexts*>(context);
  auto it = texts.find(name);
  return it != texts.end() ? it->second.c_str() : getenv(name);
}

std::string absolute(const std::string& path) {
  if (path.starts_with('/')) return path;
  char cwd[PATH_MAX];
  return getcwd(cwd, sizeof(cwd)) != nullptr ? fmt::format("{}/{}", cwd, path) : path;
}

// As the library judges it: what is forbidden is a matter of permission, the rest cannot be created.
ExitCode code_of(int error) {
  return error == EACCES || error == EPERM ? ExitCode::kPermission : ExitCode::kCannotCreate;
}

// Makes the image directory and its missing parents, 0700, and checks that images can go there.
Result<void> prepare_directory(const std::string& path) {
  // Whatever the program's is to be: it may leave us no right to what we make.
  const mode_t of_program = umask(077);
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    mkdir(path.substr(0, at).c_str(), 0700);
  }
  const int made = mkdir(path.c_str(), 0700) == 0 ? 0 : errno;
  umask(of_program);
  if (made != 0 && made != EEXIST) {
    errno = made;
    return failure(code_of(errno), path, fmt::format("cannot be created: {}", strerror(errno)),
                   "name a directory you may write with --dir or CKPT_DIR");
  }
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    return failure(ExitCode::kCannotCreate, path, "is not a directory",
                   "name a directory with --dir or CKPT_DIR");
  }
  // The library refuses these as well: whoever may write there decides what gets restarted. Root may start a
  // program that is to become the user whose directory it is.
  if ((st.st_uid != geteuid() && geteuid() != 0) || (st.st_mode & 022) != 0) {
    return failure(ExitCode::kPermission, path, "belongs to someone else, or others may write it",
                   "chmod go-w it, or name a directory of yours with --dir or CKPT_DIR");
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return failure(code_of(errno), path, fmt::format("cannot be written: {}", strerror(errno)),
                   "name a directory you may write with --dir or CKPT_DIR");
  }
  return {};
}

// Its digits alone: the library in the program adds the rest (job/identity/identity.h).
std::string new_job_id() {
  uint8_t id[16];
  if (getrandom(id, sizeof(id), 0) != sizeof(id)) return {};
  std::string text;
  for (uint8_t byte : id) text += fmt::format("{:02x}", byte);
  return text;
}

bool is_preloaded(std::string_view list, std::string_view library) {
  while (!list.empty()) {
    size_t end = list.find_first_of(": ");
    if (list.substr(0, end) == library) return true;
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
  return false;
}

// The library prepends itself once; one that is there already stays where it is. The heap goes to the end: an
// allocator that is preloaded otherwise is the one that the user wants.
void set_preload(const std::string& library, const std::string& heap, const std::string& plugins) {
  const char* before = getenv("LD_PRELOAD");
  std::string value = before == nullptr ? "" : before;
  if (!is_preloaded(value, library)) value = value.empty() ? library : fmt::format("{}:{}", library, value);
  if (!heap.empty() && !is_preloaded(value, heap)) value = fmt::format("{}:{}", value, heap);
  if (!plugins.empty() && !is_preloaded(value, plugins)) value = fmt::format("{}:{}", value, plugins);
  setenv("LD_PRELOAD", value.c_str(), 1);
}

constexpr const char* kPlugins = "CKPT_PLUGINS";

// What is to be preloaded, by a path that LD_PRELOAD can hold.
Result<std::string> preloadable(const char* name) {
  auto library = find_library(name);
  if (!library.ok()) return library.error();
  return preloadable_path(*library);
}

// The library that loads plug-ins, if there are any. A plug-in that the program would not load is refused
// before the program starts.
Result<std::string> loader_of_plugins(const SettingTexts& texts) {
  const auto given = texts.find(kPlugins);
  const char* inherited = getenv(kPlugins);
  std::string list = given != texts.end() ? given->second : inherited != nullptr ? inherited : "";
  if (list.empty()) return std::string();
  for (size_t end; !list.empty(); list.erase(0, end == std::string::npos ? end : end + 1)) {
    end = list.find(':');
    const std::string path = list.substr(0, end);
    const std::string why = path.empty() ? "" : plugins::why_not_trusted(path);
    if (!why.empty()) return make_error(ExitCode::kPermission, 0, "plug-in {}: {}", brief(path), why);
  }
  return preloadable("libckpt_plugins.so");
}

constexpr uint32_t kIncrementsInKeeper = 64;  // unless set

struct HostsOptions {
  std::string hosts, launch = kDefaultLaunch, redundancy, checks_on, differences = "words", spares, silence;
  bool recover = false;
};

// Each host's part goes to its own keeper. The program's directory is the head's: what counts is written
// there.
Result<void> use_keepers(const Settings& settings, const HostsOptions& o, const std::string& memory,
                         HostsRun& run) {
  const std::string& redundancy = o.redundancy;
  if (!o.checks_on.empty() && redundancy.empty())
    return failure(ExitCode::kUsage, "--checks-on", "is of redundancy, and there is none",
                   "add --redundancy");
  const std::string_view path = settings.directory;
  if (path.empty() || keeper_part(path) != path.size()) {
    if (redundancy.empty()) return {};
    return failure(ExitCode::kUsage, "--redundancy", "is of parts in keepers' memory", "add --to keeper:");
  }
  const size_t name = path.rfind('/') + 1;
  run.keeper = path.substr(name, path.size() - name - kKeeperSuffix.size());
  run.redundancy = redundancy;
  // Each part's has its number behind the name.
  if (run.keeper.size() + sizeof("-1000") > kMostKeeperName)
    return failure(ExitCode::kUsage, run.keeper, "is too long a name for keepers of several hosts",
                   "use a shorter one");
  // Beside the keepers there is a directory of the head, for what says which checkpoints count.
  if (const auto it = run.settings.find("CKPT_DIR");
      it != run.settings.end() && (it->second.starts_with(kKeeperScheme) || keeper_part(it->second) != 0))
    run.settings.erase(it);
  run.settings.erase("CKPT_TO");
  if (!memory.empty()) {
    auto bytes = parse_size("--memory", memory.c_str());
    if (!bytes.ok()) return bytes.error();
    run.keeper_bytes = *bytes;
  }
  if (getenv("CKPT_KEEP") == nullptr && run.settings.emplace("CKPT_KEEP", "1").second) run.keep = 1;
  const bool set = getenv("CKPT_INCREMENTS") != nullptr || run.settings.contains("CKPT_INCREMENTS");
  run.increments = set ? settings.increments : kIncrementsInKeeper;
  run.settings["CKPT_INCREMENTS"] = std::to_string(run.increments);
  if (redundancy.empty()) return {};
  auto scheme = keeper::scheme_for_hosts(redundancy, static_cast<unsigned>(run.hosts.size()));
  if (!scheme.ok()) return scheme.error();
  if (!o.checks_on.empty()) {
    auto holders = hosts_for_checks(o.checks_on, run.hosts, scheme->checks);
    if (!holders.ok()) return holders.error();
    run.checks_on = *holders;
  }
  run.settings["CKPT_KEEP"] = "0";  // the head gives parts up: all hosts need what one of them needs
  return {};
}

// The command that starts the agents need not hand on this environment: ssh does not. So the settings of the
// environment go where those of options go.
void take_settings_of_environment(SettingTexts& texts) {
  const auto take = [&texts](const char* variable) {
    const char* value = getenv(variable);
    if (value != nullptr && *value != '\0') texts.emplace(variable, value);
  };
  for (const Setting& setting : setting_table()) {
    if (std::string_view(setting.variable) != "CKPT_DISABLE") take(setting.variable);
  }
  take(kPlugins);
  if (const auto key = texts.find("CKPT_KEY_FILE"); key != texts.end() && !key->second.empty())
    key->second = absolute(key->second);
}

// The settings go to all hosts; the clock of checkpoints is the head's. named: the user has named the hosts.
ExitCode start_over_hosts(const std::vector<std::string>& program, SettingTexts& texts, const HostsOptions& o,
                          bool named, const std::string& memory, uint32_t disk_every) {
  if (!o.redundancy.empty()) texts.emplace("CKPT_TO", kKeeperScheme);
  take_settings_of_environment(texts);
  auto settings = parse_settings(lookup_setting, &texts);
  if (!settings.ok()) return report(settings.error());
  if (settings->to[0] != '\0')
    return report(
        named ? failure(ExitCode::kUnsupported, "--to", "cannot be used with --hosts yet", "leave it out")
              : failure(ExitCode::kUnsupported, "--to",
                        fmt::format("cannot be used over hosts yet, and this job starts on those of Slurm's "
                                    "allocation, {}",
                                    o.hosts),
                        "leave it out, or --hosts none: on this host alone"));
  auto hosts = split_hosts(o.hosts, false);
  if (!hosts.ok()) return report(hosts.error());
  HostsRun run{*hosts,
               o.launch,
               program,
               texts,
               settings->every_ns,
               static_cast<int>(settings->images_to_keep),
               settings->stop_timeout_ns,
               "",
               0,
               "",
               settings->increments,
               settings->every_auto,
               settings->mtbf_ns,
               o.recover,
               {},
               disk_every};
  run.allocation = variables_of_allocation();
  run.mpi = mpi_variables();
  run.settings.erase("CKPT_EVERY");
  run.settings.erase("CKPT_MTBF");
  run.words = o.differences != "none";
  run.words_of_full = o.differences == "all";
  if (!o.spares.empty()) {
    auto spares = split_hosts(o.spares, false);
    if (!spares.ok()) return report(spares.error());
    if (!o.recover)
      return report(failure(ExitCode::kUsage, "--spare", "is for hosts that die", "add --recover"));
    run.spares = *spares;
  }
  if (!o.silence.empty()) {
    constexpr int64_t kLeastNs = 2'000'000'000, kMostNs = 600'000'000'000;
    auto ns = parse_duration("--host-silence", o.silence.c_str());
    if (!ns.ok()) return report(ns.error());
    if (*ns < kLeastNs || *ns > kMostNs)
      return report(failure(ExitCode::kUsage, "--host-silence", "is between 2s and 10m", "for example 15s"));
    run.silence_ms = static_cast<int>(*ns / 1'000'000);
  }
  if (auto r = use_keepers(*settings, o, memory, run); !r.ok()) return report(r.error());
  if (disk_every != 0 && run.keeper.empty())
    return report(
        failure(ExitCode::kUsage, "--disk-every", "is of keepers, and none is named", "add --to keeper:"));
  return run_over_hosts(run);
}

// Two epochs: the older is given up when the newer is complete. Increments: what changed is all that is
// added.
Result<void> use_keeper(const Settings& settings, SettingTexts& texts, const std::string& memory,
                        uint32_t disk_every) {
  const std::string_view path = settings.directory;
  if (keeper_part(path) != path.size() || path.empty()) {
    if (disk_every != 0)
      return failure(ExitCode::kUsage, "--disk-every", "is of a keeper, and none is named",
                     "add --to keeper:");
    if (memory.empty()) return {};
    return failure(ExitCode::kUsage, "--memory", "is of a keeper, and none is named", "add --to keeper:");
  }
  KeeperSettings keeper_settings;
  const size_t name = path.rfind('/') + 1;
  keeper_settings.name = path.substr(name, path.size() - name - kKeeperSuffix.size());
  if (!memory.empty()) {
    auto bytes = parse_size("--memory", memory.c_str());
    if (!bytes.ok()) return bytes.error();
    keeper_settings.memory_bytes = *bytes;
  }
  if (disk_every != 0) {
    const auto dir = texts.find("CKPT_DIR");
    auto disk = disk_options(
        dir != texts.end() && keeper_part(dir->second) == 0 && !dir->second.starts_with(kKeeperScheme)
            ? dir->second
            : "ckpt-keeper-" + keeper_settings.name,
        disk_every);
    if (!disk.ok()) return disk.error();
    keeper_settings.disk = *disk;
  }
  CKPT_TRY(ensure_keeper(keeper_settings));
  texts["CKPT_DIR"] = settings.directory;
  texts.erase("CKPT_TO");
  unsetenv("CKPT_TO");
  for (const auto& [variable, value] : {std::pair("CKPT_KEEP", std::string("1")),
                                        std::pair("CKPT_INCREMENTS", std::to_string(kIncrementsInKeeper))}) {
    if (getenv(variable) == nullptr) texts.emplace(variable, value);
  }
  return {};
}

Result<void> start(const std::vector<std::string>& program, SettingTexts& texts,
                   const std::string& keeper_memory, uint32_t disk_every) {
  if (program.empty()) {
    return failure(ExitCode::kUsage, "run", "no program given", "ckpt run [options] -- PROGRAM [arguments]");
  }
  for (const char* name : {"CKPT_DIR", "CKPT_KEY_FILE"}) {
    if (auto it = texts.find(name);
        it != texts.end() && !it->second.empty() && !it->second.starts_with(kKeeperScheme))
      it->second = absolute(it->second);
  }
  auto settings = parse_settings(lookup_setting, &texts);
  if (!settings.ok()) return settings.error();
  if (settings->key_file[0] != '\0') {
    ImageKey key;
    prepare_ciphers();
    CKPT_TRY(read_key_file(settings->key_file, key));
    wipe(&key, sizeof(key));
  }
  auto path = find_program(program[0]);
  if (!path.ok()) return path.error();
  auto entry = check_program(*path);
  if (!entry.ok()) return entry.error();
  auto library = preloadable("libckpt_rt.so");
  if (!library.ok()) return library.error();
  Result<std::string> heap = std::string();
  if (settings->heap != Heap::kLibc) heap = preloadable("libckpt_heap.so");
  if (!heap.ok()) return heap.error();
  auto loader = loader_of_plugins(texts);
  if (!loader.ok()) return loader.error();
  CKPT_TRY(use_keeper(*settings, texts, keeper_memory, disk_every));
  if (keeper_part(settings->directory) != 0) {
    // The keeper's directory is there.
  } else if (settings->directory[0] != '\0') {
    CKPT_TRY(prepare_directory(settings->directory));
  } else if (access(".", W_OK | X_OK) != 0) {
    return failure(code_of(errno), "the current directory",
                   fmt::format("cannot be written, and images go there: {}", strerror(errno)),
                   "name another with --dir");
  }

  // Once: a program that is started in a job belongs to that job.
  if (getenv("CKPT_JOB") == nullptr) setenv("CKPT_JOB", new_job_id().c_str(), 1);
  if (getenv("SLURM_JOB_ID") != nullptr) put_stand_ins_ahead();
  if (is_mpi_launcher(program[0])) {
    const std::vector<std::string> adapters = adapters_here();
    if (!adapters.empty())
      fmt::print(stderr, "ckpt: {}\n", printable(words_on_adapters("this host", adapters)));
    CKPT_TRY(check_settings_for_adapters("this host", adapters, program));
    bar_mpi_from_adapters();
  }
  for (const auto& [name, value] : texts) setenv(name.c_str(), value.c_str(), 1);
  unsetenv("CKPT_DISABLE");  // asked for by name, it is not asleep
  set_preload(*library, *heap, *loader);
  std::vector<char*> argv;
  std::string first = *path, file = *path;
  if (*entry == Entry::kBeside) {
    // Not into that command: it says it to the program.
    setenv(kBesideVariable, getenv("LD_PRELOAD"), 1);
    unsetenv("LD_PRELOAD");
    first = command_path("ckpt-beside");
    argv = {first.data(), file.data()};
  }
  for (const std::string& word : program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(first.c_str(), argv.data());
  int error = errno;
  return failure(error == EACCES || error == EPERM ? ExitCode::kPermission : ExitCode::kSystem, *path,
                 fmt::format("cannot be started: {}", strerror(error)), "check the program and its limits");
}

// "what it means: what is accepted (default …)".
std::string help_of(const Setting& setting) {
  SettingText accepted, standard;
  accepted_by(setting, accepted);
  setting.print(Settings{}, standard);
  return fmt::format("{}: {} (default {})", setting.meaning, accepted.text,
                     setting.when_empty != nullptr ? setting.when_empty : standard.text);
}

}  // namespace

CLI::App* add_run(CLI::App& app, const std::vector<std::string>& program, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("run", "start a program that can be checkpointed");
  auto texts = std::make_shared<SettingTexts>();
  for (const Setting& setting : setting_table()) {
    if ((setting.given & kByRun) == 0) continue;
    command
        ->add_option_function<std::string>(
            setting.option,
            [texts, variable = setting.variable](const std::string& text) { (*texts)[variable] = text; },
            help_of(setting))
        ->option_text(setting.value);
  }
  command->footer(
      "After the options: [--] PROGRAM [ARGUMENTS...]\n"
      "The same settings work as CKPT_* variables with LD_PRELOAD=libckpt_rt.so alone: libckpt_rt(7).\n"
      "Exit codes: those of the program once it runs; before that 64 wrong arguments, 66 no such program,\n"
      "73 directory cannot be made, 77 not permitted, 78 static, setuid, 32-bit or foreign program.");
  command
      ->add_option_function<std::string>(
          "--plugins", [texts](const std::string& text) { (*texts)[kPlugins] = text; },
          "shared libraries that know more of checkpoints (ckpt_plugin.h): absolute paths, separated by "
          "colons")
      ->option_text("PATHS");
  auto memory = std::make_shared<std::string>();
  command->add_option(
      "--memory", *memory,
      "of the keeper that --to keeper:NAME starts, if there is none: the most that images may take");
  auto disk_every = std::make_shared<uint32_t>(0);
  command
      ->add_option("--disk-every", *disk_every,
                   "with --to keeper: every N-th checkpoint goes to the directory of --dir as well\n"
                   "(over hosts: to `disk` in it)")
      ->option_text("N");
  auto hosts = std::make_shared<HostsOptions>();
  command->add_option(
      "--hosts", hosts->hosts,
      "spread the job over these hosts, h1,h2,h3; the program starts on the first. `allocation`: over "
      "the nodes that Slurm has given\n(default where srun or mpirun is started in its batch script, or at "
      "the prompt of salloc). `none`: this host alone");
  command->add_option(
      "--launch", hosts->launch,
      "how agents are started on them; {host} is the host (default: ssh -o BatchMode=yes {host})");
  command->add_option("--redundancy", hosts->redundancy,
                      "over the keepers of these hosts: mirror, parity, parity:M, evenodd, rs:K+M");
  command
      ->add_option("--checks-on", hosts->checks_on,
                   "the redundancy is on these of the hosts alone, h5,h6, or on so many of the last ones "
                   "(default: on all, in turns)")
      ->option_text("HOSTS");
  command
      ->add_option("--differences", hosts->differences,
                   "redundancy is over the words that differ, where that is less: words (of increments), all "
                   "(of full images too), or none (default: words)")
      ->check(CLI::IsMember({"words", "all", "none"}))
      ->option_text("KIND");
  command->add_flag("--recover", hosts->recover,
                    "when one of these hosts dies the job goes on from its newest checkpoint");
  command->add_option("--spare", hosts->spares,
                      "hosts that take the place of those that die, h4,h5 (default: those that are left)");
  command->add_option("--host-silence", hosts->silence,
                      "a host of which nothing is heard for so long is gone (default: 15s)");
  command->callback([&program, texts, memory, hosts, disk_every, &exit] {
    std::vector<std::string> words = program;
    const bool named = !hosts->hosts.empty();
    if (auto r = settle_hosts(hosts->hosts, hosts->launch, words); !r.ok()) {
      exit = report(r.error());
      return;
    }
    if (!hosts->hosts.empty()) {
      exit = start_over_hosts(words, *texts, *hosts, named, *memory, *disk_every);
      return;
    }
    for (const auto& [option, given] : {std::pair("--recover", hosts->recover),
                                        {"--spare", !hosts->spares.empty()},
                                        {"--redundancy", !hosts->redundancy.empty()},
                                        {"--host-silence", !hosts->silence.empty()}}) {
      if (!given) continue;
      exit = report(failure(ExitCode::kUsage, option, "is of a job over hosts", "add --hosts"));
      return;
    }
    auto started = start(program, *texts, *memory, *disk_every);
    exit = report(started.error());
  });
  return command;
}

}  // namespace ckpt::cli
