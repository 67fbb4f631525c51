#include "cli/keeper/disk/disk_watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/raii_fd.h"
#include "cli/keeper/disk/save_checkpoint.h"
#include "cli/text/failure.h"
#include "cluster/keeper/low_priority.h"
#include "image/read/sources/reading_key.h"

namespace ckpt::cli {

namespace {

constexpr const char* kStateName = ".disk";
constexpr uint32_t kKeep = 2;

void write_state(int keeper_directory, const DiskState& state) {
  const nlohmann::json j{{"directory", state.options.directory},
                         {"every", state.options.every},
                         {"saved", state.saved},
                         {"error", state.error},
                         {"time_ns", state.time_ns}};
  const std::string text = j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n",
                    temporary = std::string(kStateName) + ".tmp";
  {
    const ScopedFd out(openat(keeper_directory, temporary.c_str(),
                              O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!out.valid() || write(out.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      return;
  }
  renameat(keeper_directory, temporary.c_str(), keeper_directory, kStateName);
}

// The newest of each program that is due.
std::map<std::string, std::pair<uint64_t, std::string>> due(int events, uint32_t every) {
  std::map<std::string, std::pair<uint64_t, std::string>> all;
  alignas(inotify_event) char buffer[16384];
  const ssize_t n = read(events, buffer, sizeof(buffer));
  for (ssize_t at = 0; at < n;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    std::string program;
    uint64_t sequence = 0;
    const std::string name = event->len != 0 ? static_cast<const char*>(event->name) : "";
    if (!parse_checkpoint_name(name, program, sequence) || sequence % every != 0) continue;
    all[program] = {sequence, name};
  }
  return all;
}

// Of that program the newest that is there.
std::string newest(const std::string& from, const std::string& program) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(from.c_str()), closedir);
  std::string best;
  uint64_t highest = 0;
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    std::string of;
    uint64_t sequence = 0;
    if (!parse_checkpoint_name(entry->d_name, of, sequence) || of != program || sequence < highest) continue;
    highest = sequence;
    best = entry->d_name;
  }
  return best;
}

// A program that takes many in a second may have given it up by now: then a newer one is there.
void save(const std::string& from, const std::string& program, std::string name, DiskState& state) {
  auto saved = save_checkpoint(from, name, state.options.directory, kKeep);
  while (!saved.ok() && saved.error().code == ExitCode::kNotFound) {
    const std::string newer = newest(from, program);
    if (newer.empty() || newer == name) break;
    name = newer;
    saved = save_checkpoint(from, name, state.options.directory, kKeep);
  }
  if (saved.ok()) state.saved = name;
  state.error = saved.ok() ? "" : std::string(saved.error().message());
  state.time_ns = now_ns(CLOCK_REALTIME);
}

[[noreturn]] void watch(int keeper_directory, int events, DiskState state) {
  const std::string from = fmt::format("/proc/self/fd/{}", keeper_directory);
  for (;;) {
    for (const auto& [program, what] : due(events, state.options.every)) {
      points::at("disk.begun");
      save(from, program, what.second, state);
      write_state(keeper_directory, state);
    }
  }
}

}  // namespace

DiskState read_disk_state(const std::string& keeper_directory) {
  std::ifstream in(keeper_directory + "/" + kStateName);
  const auto j = nlohmann::json::parse(in, nullptr, false);
  DiskState state;
  if (!j.is_object()) return state;
  state.options.directory = j.value("directory", "");
  state.options.every = j.value("every", 0u);
  state.saved = j.value("saved", "");
  state.error = j.value("error", "");
  state.time_ns = j.value("time_ns", int64_t{0});
  return state;
}

Result<int> start_disk_watch(int keeper_directory, const DiskOptions& options) {
  // Before anybody can commit anything.
  const int events = inotify_init1(IN_CLOEXEC);
  const std::string path = fmt::format("/proc/self/fd/{}", keeper_directory);
  if (events < 0 || inotify_add_watch(events, path.c_str(), IN_MOVED_TO | IN_ONLYDIR) < 0)
    return failure(ExitCode::kSystem, "--disk-every", fmt::format("cannot watch ({})", errno_name(errno)),
                   "raise fs.inotify.max_user_instances");
  const ScopedFd closes(events);
  DiskState state;
  state.options = options;
  write_state(keeper_directory, state);
  const int keeper = getpid();
  const pid_t child = fork();
  if (child < 0) return failure(ExitCode::kSystem, "--disk-every", strerror(errno), "raise ulimit -u");
  if (child > 0) return static_cast<int>(child);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(0);
  prctl(PR_SET_NAME, "ckpt-keeper-dsk");
  signal(SIGTERM, SIG_DFL);
  signal(SIGXFSZ, SIG_IGN);
  keeper::take_low_priority();
  // Not the keeper's socket, nor its lock: they end with the keeper.
  const int own = fcntl(keeper_directory, F_DUPFD_CLOEXEC, 3), seen = fcntl(events, F_DUPFD_CLOEXEC, 3);
  const int limit = static_cast<int>(sysconf(_SC_OPEN_MAX));
  for (int fd = 3; fd < limit && fd < 65536; ++fd) {
    if (fd != own && fd != seen) close(fd);
  }
  static const int pid = getpid();
  static const char* const self = "disk";
  if (const char* point = getenv("CKPT_TEST_POINT")) points::want(point, self, &pid);
  if (auto key = use_key_file(""); !key.ok()) _exit(static_cast<int>(key.error().code));
  watch(own, seen, state);
}

}  // namespace ckpt::cli
