#include "restart/feed/loader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "restart/feed/refuse_pages.h"
#include "restart/reports/packet.h"
#include "restart/restorer/clone.h"

namespace ckpt {
namespace {

enum LoadOutcome : uint32_t { kLoading = 0, kLoaded = 1, kFailed = 2, kNoProgram = 3 };

int pidfd_of(int pid) { return static_cast<int>(sys::call(__NR_pidfd_open, pid, 0)); }

bool has_ended(int pidfd) {
  pollfd ended{pidfd, POLLIN, 0};
  return poll(&ended, 1, 0) != 0;
}

// Receives the descriptors and the message of introduce_to_loader(). False: the new process has ended.
bool meet_process(int socket, LoaderHello& hello, int (&fds)[2]) {
  if (receive_packet(socket, std::as_writable_bytes(std::span(&hello, 1)), fds, false) != Received::kMessage)
    return false;
  if (fds[1] >= 0) return true;
  ScopedFd(fds[0]).reset();
  return false;
}

// Gives up ckpt-restart's terminal, directory and standard input and output, but not stderr: a process that
// reads the program's output to its end must not wait for the loader.
void leave_surroundings() {
  prctl(PR_SET_NAME, "ckpt-loader");
  signal(SIGTTOU, SIG_IGN);
  (void)!chdir("/");
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 2 && null >= 0; ++fd) dup2(null, fd);
  if (null > 2) close(null);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);  // one for each child that the program forks meanwhile
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

struct Loader::State {
  std::atomic<uint32_t> outcome{kLoading};
  std::atomic<uint32_t> detached{0};
  std::atomic<uint32_t> noticed{0};  // ckpt-restart has seen the loader's end, and says what it was
  std::atomic<int> program{-1};      // a pidfd, of the loader's descriptors
  int64_t began_ns = 0, ended_ns = 0;
  LoadingCost cost;
  Error error;
};

Loader::~Loader() {
  if (state_ != nullptr) munmap(state_, sizeof(State));
}

Result<void> introduce_to_loader(int socket, int uffd, uint64_t gate) {
  ScopedFd self(pidfd_of(getpid()));
  if (!self.valid()) {
    return make_error(ExitCode::kSystem, -self.release(),
                      "no pidfd of the new process; restart with --eager");
  }
  const int fds[2] = {uffd, self.get()};
  const LoaderHello hello{gate};
  const int sent = send_packet(socket, std::as_bytes(std::span(&hello, 1)), fds);
  if (sent == 0) return {};
  return make_error(ExitCode::kSystem, -sent,
                    "the process that loads the memory is gone ({}); restart with --eager",
                    errno_name(-sent));
}

void Loader::forget() {
  process_end_.reset();
  if (pid_ > 0 && pidfd_.valid()) waitpid(pid_, nullptr, 0);
  pidfd_.reset();
  pid_ = 0;
  error_.reset();
}

Result<void> Loader::start(const ImageChain& image, const LazyPlan& plan, LoaderOptions options) {
  forget();
  image_path_ = image.path();
  // A new State for each attempt: the sentry of an earlier attempt may still read its own.
  if (state_ != nullptr) munmap(state_, sizeof(State));
  state_ = nullptr;
  void* shared = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED)
    return make_error(ExitCode::kSystem, errno, "no shared memory ({})", errno_name(errno));
  state_ = new (shared) State;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return make_error(ExitCode::kSystem, errno, "no socket pair for the loader ({})", errno_name(errno));
  }
  process_end_ = ScopedFd(ends[0]);
  ScopedFd loaders_end(ends[1]);
  supervisor_ = pidfd_of(getpid());
  pid_ = fork();
  if (pid_ == 0) {
    process_end_.reset();
    run(image, plan, std::move(loaders_end), options);
  }
  ScopedFd(supervisor_).reset();
  supervisor_ = -1;
  if (pid_ < 0) {
    return make_error(ExitCode::kUnavailable, errno,
                      "no process to load the memory ({}); raise ulimit -u, or restart with --eager",
                      errno_name(errno));
  }
  pidfd_ = ScopedFd(pidfd_of(pid_));
  return {};
}

bool Loader::must_speak() const {
  if (state_->detached.load(std::memory_order_relaxed) != 0) return true;
  // In this order: ckpt-restart may notice the loader's end, and then end itself.
  return (supervisor_ < 0 || has_ended(supervisor_)) && state_->noticed.load(std::memory_order_acquire) == 0;
}

void Loader::run(const ImageChain& image, const LazyPlan& plan, ScopedFd socket, LoaderOptions options) {
  leave_surroundings();
  auto loaded = load(image, plan, socket.get());
  state_->ended_ns = now_ns();
  if (loaded.ok()) {
    state_->outcome.store(*loaded ? kLoaded : kNoProgram, std::memory_order_release);
    if (*loaded && !options.quiet && must_speak()) {
      const std::string text = loaded_text(options.json);
      std::fprintf(stderr, options.json ? "%s\n" : "ckpt-restart: note: %s\n", text.c_str());
    }
    _exit(0);
  }
  const Error& error = loaded.error();
  state_->error = error;
  state_->outcome.store(kFailed, std::memory_order_release);
  if (must_speak()) {
    std::fprintf(stderr, "ckpt-restart: the program was killed, for its memory cannot be loaded: %s\n",
                 error.text);
  }
  _exit(static_cast<int>(error.code));  // the sentry kills the program
}

// False: the new process ended before there was anything to do.
Result<bool> Loader::load(const ImageChain& image, const LazyPlan& plan, int socket) {
  const int self = pidfd_of(getpid());
  if (self < 0) return make_error(ExitCode::kSystem, -self, "no pidfd of the loader ({})", errno_name(self));
  // Before LazyMemory makes its lists, of which the sentry would get a copy.
  CloneResult sentry_process = clone_process(CLONE_FILES, 0);
  if (sentry_process.pid == 0) sentry(self);
  if (sys::failed(sentry_process.pid)) {
    return make_error(ExitCode::kUnavailable, static_cast<int>(sentry_process.pid),
                      "no process to watch the loader ({}); raise ulimit -u, or restart with --eager",
                      errno_name(static_cast<int>(sentry_process.pid)));
  }
  close(sentry_process.pidfd);
  // Built while the new process is being made. Never deleted: see LazyMemory::run().
  LazyMemory& memory = *new LazyMemory(image, plan);
  LoaderHello hello{};
  int fds[2] = {-1, -1};
  if (!meet_process(socket, hello, fds)) return false;
  ScopedFd uffd(fds[0]);
  state_->program.store(fds[1], std::memory_order_release);
  CKPT_TRY(memory.start(std::move(uffd), Addr{hello.gate}));
  uint64_t registered = 0;
  if (read(socket, &registered, sizeof(registered)) != static_cast<ssize_t>(sizeof(registered))) return false;
  state_->began_ns = now_ns();
  CKPT_TRY(memory.load_first());
  (void)!write(socket, &registered, sizeof(registered));
  auto all = memory.run();
  state_->cost = memory.cost();
  if (!all.ok()) return all.error();
  return true;
}

// The sentry: it shares the loader's descriptors, has a copy of its memory, and may use no lock of libc.
void Loader::sentry(int loader) {
  prctl(PR_SET_NAME, "ckpt-sentry");
  pollfd ended{loader, POLLIN, 0};
  while (poll(&ended, 1, -1) < 0) {
  }
  const uint32_t outcome = state_->outcome.load(std::memory_order_acquire);
  if (outcome == kLoaded || outcome == kNoProgram) _exit(0);
  // -1: the loader has not met the new process, which then misses no page.
  if (const int program = state_->program.load(std::memory_order_acquire); program >= 0) {
    sys::call(__NR_pidfd_send_signal, program, SIGKILL, 0L, 0L);
  }
  if (outcome == kLoading && must_speak()) {
    static constexpr char kLine[] =
        "ckpt-restart: the process that loads the program's memory was killed: the program was killed too, "
        "for the rest "
        "of its memory is not there; restart it again\n";
    (void)!write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  }
  refuse_pages();
  _exit(0);
}

void Loader::reap() {
  if (!pidfd_.valid()) return;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return;
  pidfd_.reset();
  state_->noticed.store(1, std::memory_order_release);
  const uint32_t outcome = state_->outcome.load(std::memory_order_acquire);
  if (outcome == kLoaded) {
    loaded_ = true;
  } else if (outcome == kFailed) {
    error_ = make_error(state_->error.code, state_->error.sys_errno,
                        "the program was killed, for its memory cannot be loaded: {}", state_->error.text);
  } else if (outcome == kLoading) {
    error_ = make_error(
        ExitCode::kSystem, 0,
        "the process that loads the program's memory was killed: the program was killed too, for the rest "
        "of its memory is not there; restart it again");
  }
}

std::string Loader::loaded_text(bool json) const {
  const LoadingCost& c = state_->cost;
  const int64_t ns = state_->ended_ns - state_->began_ns;
  if (json) {
    return nlohmann::json{
        {"event", "loaded"},           {"image", image_path_}, {"image_may_be_deleted", true},
        {"loaded_bytes", c.bytes},     {"loading_ns", ns},     {"faults", c.faults},
        {"zero_faults", c.zero_faults}}
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  return fmt::format("{}: all of its memory is loaded ({:.1f} MiB in {:.2f} s), the image may be deleted",
                     image_path_, static_cast<double>(c.bytes) / (1 << 20), static_cast<double>(ns) / 1e9);
}

void Loader::detach() {
  if (state_ != nullptr) state_->detached.store(1, std::memory_order_relaxed);
}

}  // namespace ckpt
