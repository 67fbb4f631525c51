#include "cli/keeper/start_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "base/clock.h"
#include "base/protocol/keeper_protocol.h"
#include "base/raii_fd.h"
#include "cli/text/failure.h"
#include "cluster/keeper/keeper_memory.h"
#include "cluster/keeper/keeper_server.h"
#include "image/format/keeper_client.h"
#include "image/write/directory/image_directory.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kLeastMemory = 16 << 20;

constinit int volatile ended = 0;
void end(int) { ended = 1; }

uint64_t half_of_machine() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

// Keeps no terminal, no working directory, and no descriptor but `ready`: a reader of the caller's pipe must
// not wait for the keeper's end.
void leave_everything(int ready) {
  setsid();
  prctl(PR_SET_NAME, "ckpt-keeper");
  if (chdir("/") != 0) return;
  const int nothing = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) dup2(nothing, fd);
  const auto limit = static_cast<int>(sysconf(_SC_OPEN_MAX));
  for (int fd = 3; fd < limit && fd < 65536; ++fd) {
    if (fd != ready) close(fd);
  }
}

// Where the first word of a keeper goes: the code and text of what failed, or that it is ready.
void say(int pipe, const Error& error) {
  if (pipe >= 0 && write(pipe, &error, sizeof(error)) != static_cast<ssize_t>(sizeof(error))) return;
}

Result<void> be_keeper(const KeeperSettings& settings, int ready) {
  auto place = keeper::take_place(settings.name);
  if (!place.ok()) return place.error();
  auto memory = keeper::make_memory(settings.name, settings.memory_bytes);
  if (!memory.ok()) return memory.error();
  for (const int signal : {SIGHUP, SIGINT, SIGPIPE}) ::signal(signal, SIG_IGN);
  int disk = -1;
  if (settings.disk.every != 0) {
    auto watch = start_disk_watch(memory->images.get(), settings.disk);
    if (!watch.ok()) return watch.error();
    disk = *watch;
  }
  struct sigaction action {};
  action.sa_handler = &end;
  sigaction(SIGTERM, &action, nullptr);
  if (settings.foreground) sigaction(SIGINT, &action, nullptr);
  keeper::Facts facts;
  facts.huge_pages = memory->huge_pages ? 1 : 0;
  facts.since_ns = now_ns(CLOCK_REALTIME);
  bool volatile stop = false;
  std::thread touching;
  if (settings.touch) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    touching = std::thread([&] { facts.touched_bytes = keeper::touch_memory(settings.memory_bytes, &stop); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (ready >= 0) {
    Error fine;
    fine.code = ExitCode::kOk;
    say(ready, fine);
    close(ready);
  }
  keeper::serve(*place, *memory, facts, &ended);
  stop = true;
  if (disk > 0) kill(disk, SIGKILL);
  if (touching.joinable()) touching.join();
  return {};
}

}  // namespace

Result<void> start_keeper(const KeeperSettings& asked) {
  KeeperSettings settings = asked;
  if (settings.name.empty()) settings.name = kDefaultKeeper;
  if (!is_keeper_name(settings.name))
    return failure(ExitCode::kUsage, settings.name, "is no name for a keeper",
                   "use letters, digits, - and _, at most 40");
  if (settings.memory_bytes == 0) settings.memory_bytes = half_of_machine();
  if (settings.memory_bytes < kLeastMemory)
    return failure(ExitCode::kUsage, "--memory", "is too little for any image", "give at least 16M");
  if (settings.foreground) return be_keeper(settings, -1);
  std::array<int, 2> pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0)
    return failure(ExitCode::kSystem, "the keeper", strerror(errno), "raise ulimit -n");
  ScopedFd reads(pipe[0]), writes(pipe[1]);
  const pid_t child = fork();
  if (child < 0) return failure(ExitCode::kSystem, "the keeper", strerror(errno), "raise ulimit -u");
  if (child == 0) {
    leave_everything(writes.get());
    // A second fork: the caller is not the keeper's parent, and need not wait for its end.
    const pid_t grandchild = fork();
    if (grandchild != 0) _exit(grandchild < 0 ? 1 : 0);
    const auto result = be_keeper(settings, writes.get());
    if (!result.ok()) say(writes.get(), result.error());
    _exit(result.ok() ? 0 : static_cast<int>(result.error().code));
  }
  writes.reset();
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  Error first;
  ssize_t n;
  while ((n = read(reads.get(), &first, sizeof(first))) < 0 && errno == EINTR) {
  }
  if (n != static_cast<ssize_t>(sizeof(first)))
    return failure(ExitCode::kSystem, "keeper:" + settings.name, "ended at once", "see the kernel log");
  first.text[sizeof(first.text) - 1] = '\0';
  return first.code == ExitCode::kOk ? Result<void>() : Result<void>(first);
}

Result<DiskOptions> disk_options(const std::string& directory, uint32_t every) {
  mkdir(directory.c_str(), 0700);
  auto open = open_image_directory(directory.c_str());
  if (!open.ok()) return open.error();
  char* whole = realpath(directory.c_str(), nullptr);
  DiskOptions options{whole != nullptr ? whole : directory, every};
  free(whole);
  return options;
}

Result<void> ensure_keeper(const KeeperSettings& settings) {
  const KeeperPath path = keeper_path(geteuid(), settings.name);
  ScopedFd directory;
  const auto there = ask_keeper(path.text, KeeperOperation::kOpen, &directory);
  if (there.ok()) {
    const DiskOptions is = read_disk_state(fmt::format("/proc/self/fd/{}", directory.get())).options;
    if (settings.disk.every == 0 ||
        (is.every == settings.disk.every && is.directory == settings.disk.directory))
      return {};
    return failure(ExitCode::kUnavailable, "keeper:" + settings.name,
                   is.every == 0
                       ? "is there already, and saves nothing to a disk"
                       : fmt::format("is there already, and saves every {}th to {}", is.every, is.directory),
                   "name another, --to keeper:OTHER");
  }
  if (there.error().code != ExitCode::kUnavailable) return there.error();
  auto started = start_keeper(settings);
  // Another may have started it at the same time.
  if (!started.ok() && started.error().code == ExitCode::kUnavailable &&
      ask_keeper(path.text, KeeperOperation::kStatus).ok())
    return settings.disk.every == 0 ? Result<void>() : ensure_keeper(settings);
  return started;
}

}  // namespace ckpt::cli
