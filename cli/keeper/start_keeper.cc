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
#include "image/write/image_directory.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kLeastMemory = 16 << 20;

int volatile ended = 0;
void end(int) { ended = 1; }

uint64_t half_of_machine() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

// Keeps no terminal, no working directory, and no descriptor but `kept`: a reader of the caller's pipe must
// not wait for the keeper's end.
void leave_everything(int kept) {
  setsid();
  prctl(PR_SET_NAME, "ckpt-keeper");
  if (chdir("/") != 0) return;
  const int nothing = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) dup2(nothing, fd);
  const auto limit = static_cast<int>(sysconf(_SC_OPEN_MAX));
  for (int fd = 3; fd < limit && fd < 65536; ++fd) {
    if (fd != kept) close(fd);
  }
}

// Where the first word of a keeper goes: the code and text of what failed, or that it is ready.
void say(int pipe, const Error& error) {
  if (pipe >= 0 && write(pipe, &error, sizeof(error)) != static_cast<ssize_t>(sizeof(error))) return;
}

Result<void> be_keeper(const KeeperSettings& wishes, int ready) {
  auto place = keeper::take_place(wishes.name);
  if (!place.ok()) return place.error();
  auto memory = keeper::make_memory(wishes.name, wishes.memory_bytes);
  if (!memory.ok()) return memory.error();
  for (const int signal : {SIGHUP, SIGINT, SIGPIPE}) ::signal(signal, SIG_IGN);
  int disk = -1;
  if (wishes.disk.every != 0) {
    auto watch = start_disk_watch(memory->images.get(), wishes.disk);
    if (!watch.ok()) return watch.error();
    disk = *watch;
  }
  struct sigaction action {};
  action.sa_handler = &end;
  sigaction(SIGTERM, &action, nullptr);
  if (wishes.foreground) sigaction(SIGINT, &action, nullptr);
  keeper::Facts facts;
  facts.huge_pages = memory->huge_pages ? 1 : 0;
  facts.since_ns = now_ns(CLOCK_REALTIME);
  bool volatile stop = false;
  std::thread touching;
  if (wishes.touch) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    touching = std::thread([&] { facts.touched_bytes = keeper::touch_memory(wishes.memory_bytes, &stop); });
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
  KeeperSettings wishes = asked;
  if (wishes.name.empty()) wishes.name = kDefaultKeeper;
  if (!is_keeper_name(wishes.name))
    return failure(ExitCode::kUsage, wishes.name, "is no name for a keeper",
                   "use letters, digits, - and _, at most 40");
  if (wishes.memory_bytes == 0) wishes.memory_bytes = half_of_machine();
  if (wishes.memory_bytes < kLeastMemory)
    return failure(ExitCode::kUsage, "--memory", "is too little for any image", "give at least 16M");
  if (wishes.foreground) return be_keeper(wishes, -1);
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
    const auto kept = be_keeper(wishes, writes.get());
    if (!kept.ok()) say(writes.get(), kept.error());
    _exit(kept.ok() ? 0 : static_cast<int>(kept.error().code));
  }
  writes.reset();
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  Error first;
  ssize_t n;
  while ((n = read(reads.get(), &first, sizeof(first))) < 0 && errno == EINTR) {
  }
  if (n != static_cast<ssize_t>(sizeof(first)))
    return failure(ExitCode::kSystem, "keeper:" + wishes.name, "ended at once", "see the kernel log");
  first.text[sizeof(first.text) - 1] = '\0';
  return first.code == ExitCode::kOk ? Result<void>() : Result<void>(first);
}

Result<DiskWishes> disk_wishes(const std::string& directory, uint32_t every) {
  mkdir(directory.c_str(), 0700);
  auto open = open_image_directory(directory.c_str());
  if (!open.ok()) return open.error();
  char* whole = realpath(directory.c_str(), nullptr);
  DiskWishes wishes{whole != nullptr ? whole : directory, every};
  free(whole);
  return wishes;
}

Result<void> ensure_keeper(const KeeperSettings& wishes) {
  const KeeperPath path = keeper_path(geteuid(), wishes.name);
  ScopedFd directory;
  const auto there = ask_keeper(path.text, KeeperOperation::kOpen, &directory);
  if (there.ok()) {
    const DiskWishes is = read_disk_state(fmt::format("/proc/self/fd/{}", directory.get())).wishes;
    if (wishes.disk.every == 0 || (is.every == wishes.disk.every && is.directory == wishes.disk.directory))
      return {};
    return failure(ExitCode::kUnavailable, "keeper:" + wishes.name,
                   is.every == 0
                       ? "is there already, and saves nothing to a disk"
                       : fmt::format("is there already, and saves every {}th to {}", is.every, is.directory),
                   "name another, --to keeper:OTHER");
  }
  if (there.error().code != ExitCode::kUnavailable) return there.error();
  auto started = start_keeper(wishes);
  // Another may have started it at the same time.
  if (!started.ok() && started.error().code == ExitCode::kUnavailable &&
      ask_keeper(path.text, KeeperOperation::kStatus).ok())
    return wishes.disk.every == 0 ? Result<void>() : ensure_keeper(wishes);
  return started;
}

}  // namespace ckpt::cli
