#include "libckpt_rt/checkpoint/image/image_command.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <climits>

#include "base/clock.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/of_ours/raw_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr int kFirstFd = 10;  // above those that the command gets
constexpr int kPipeBytes = 1 << 20;
constexpr size_t kStack = 32 << 10;
// A command that has closed its input may take so long to end; then the checkpoint is given up without its
// status. A command that was asked to end (SIGTERM) may take as long before it is killed.
constexpr int64_t kEndsMs = 2000, kPatienceMs = 5000;

// Kept from the program's start; in an image like any other memory.
constinit char** remembered_environment = nullptr;
constinit size_t remembered_count = 0;

bool starts_with(const char* text, std::string_view start) {
  return std::strncmp(text, start.data(), start.size()) == 0;
}

// "LD_PRELOAD=..." without our library; false: nothing is left.
bool without_us(const char* from, char* to) {
  constexpr std::string_view kName = "LD_PRELOAD=", kOurs = "libckpt_rt.so";
  std::memcpy(to, kName.data(), kName.size());
  char* out = to + kName.size();
  std::string_view rest(from + kName.size());
  while (!rest.empty()) {
    const size_t end = rest.find_first_of(": ");
    std::string_view one = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (one.empty() || one.ends_with(kOurs)) continue;
    if (out != to + kName.size()) *out++ = ':';
    std::memcpy(out, one.data(), one.size());
    out += one.size();
  }
  *out = '\0';
  return out != to + kName.size();
}

// A descriptor that dup3 to 0, 1 and 2 does not overwrite; closes the one given.
ScopedFd moved_up(int fd) {
  ScopedFd low(fd);
  long high = sys::call(__NR_fcntl, fd, static_cast<long>(F_DUPFD_CLOEXEC), static_cast<long>(kFirstFd));
  return ScopedFd(sys::failed(high) ? -1 : static_cast<int>(high));
}

}  // namespace

void remember_command_environment(char** environment) {
  size_t count = 0, bytes = 0;
  for (char** e = environment; e != nullptr && *e != nullptr; ++e, ++count) bytes += std::strlen(*e) + 1;
  const size_t total = (count + 1) * sizeof(char*) + bytes;
  long p = sys::call(__NR_mmap, 0L, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
  if (sys::failed(p)) return;
  remembered_environment = reinterpret_cast<char**>(p);
  char* text = reinterpret_cast<char*>(remembered_environment + count + 1);
  remembered_count = 0;
  for (char** e = environment; e != nullptr && *e != nullptr; ++e) {
    if (starts_with(*e, "CKPT_")) continue;
    if (!starts_with(*e, "LD_PRELOAD=")) {
      std::memcpy(text, *e, std::strlen(*e) + 1);
    } else if (!without_us(*e, text)) {
      continue;
    }
    remembered_environment[remembered_count++] = text;
    text += std::strlen(text) + 1;
  }
}

// Written by the agent before the nanny starts, and by the nanny and its child afterwards.
struct ImageCommand::Shared {
  int input, output, ready;  // descriptors, from kFirstFd
  int parent;                // pid
  int status = -1;           // the command's, of wait(2)
  int error = 0;             // why it could not be started, errno
  char* argv[4];
  char** environment;
  std::byte *nanny_stack_top, *child_stack_top;
};

// The child of a vfork: shares memory with us and the nanny, nothing else.
void ImageCommand::execute(void* shared) {
  auto& s = *static_cast<Shared*>(shared);
  uint64_t none = 0;
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &none, 0L, 8L);
  s.error = static_cast<int>(-sys::call(__NR_execve, "/bin/sh", s.argv, s.environment));
  sys::call(__NR_exit_group, 127);
}

void ImageCommand::nanny(void* shared) {
  auto& s = *static_cast<Shared*>(shared);
  // With us goes the pipe, and with that the command's input; a nanny would only keep our memory.
  sys::call(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL);
  if (sys::call(__NR_getppid) != s.parent) sys::call(__NR_exit_group, 1);
  sys::call(__NR_setsid);  // ^C at the program's terminal is not for the command
  sys::call(__NR_umask, 077);
  // Tables of our own: no CLONE_SIGHAND, no CLONE_FILES. All signals are blocked until the command is
  // executed.
  struct {
    uint64_t handler = 0, flags = 0, restorer = 0, mask = 0;
  } by_default;
  for (int signal = 1; signal <= 64; ++signal) sys::call(__NR_rt_sigaction, signal, &by_default, 0L, 8L);
  sys::call(__NR_dup3, s.input, 0, 0);
  sys::call(__NR_dup3, s.output, 1, 0);
  sys::call(__NR_dup3, s.output, 2, 0);
  sys::call(__NR_dup3, s.ready, 3, O_CLOEXEC);
  sys::call(__NR_close_range, 4L, UINT_MAX, 0L);  // the writing end of the pipe, above all
  long child = ckpt_clone_thread(CLONE_VM | CLONE_VFORK | SIGCHLD, s.child_stack_top, nullptr, nullptr,
                                 nullptr, &execute, &s);
  if (sys::failed(child)) {
    s.error = static_cast<int>(-child);
    sys::call(__NR_exit_group, 1);
  }
  sys::call(__NR_close, 3);
  sys::call(__NR_close, 0);
  int status = 0;
  while (sys::call(__NR_wait4, child, &status, 0L, 0L) == -EINTR) {
  }
  s.status = status;
  sys::call(__NR_exit_group, 0);
}

Error ImageCommand::not_started(long error) const {
  return make_error(ExitCode::kSystem, static_cast<int>(error),
                    "cannot start the command of CKPT_TO ({}): {}", errno_name(static_cast<int>(error)),
                    command_);
}

Result<void> ImageCommand::start(const char* command, const Facts& facts, int dir_fd, Arena& arena) {
  CKPT_TRY(prepare(command, facts, dir_fd, arena));
  CKPT_TRY(launch());
  return await_launch();
}

Result<void> ImageCommand::prepare(const char* command, const Facts& facts, int dir_fd, Arena& arena) {
  command_ = command;
  name_ = facts.name;
  constexpr size_t kOwn = 5, kText = 1100;
  shared_ = static_cast<Shared*>(arena.allocate(sizeof(Shared)));
  auto* stacks = static_cast<std::byte*>(arena.allocate(2 * kStack, 64));
  auto** environment = static_cast<char**>(arena.allocate((remembered_count + kOwn + 1) * sizeof(char*)));
  auto* text = static_cast<char*>(arena.allocate(kOwn * kText));
  if (shared_ == nullptr || stacks == nullptr || environment == nullptr || text == nullptr)
    return not_started(ENOMEM);
  *shared_ = {};
  size_t n = 0;
  for (; n < remembered_count; ++n) environment[n] = remembered_environment[n];
  auto set = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    *fmt::format_to_n(text, kText - 1, format, std::forward<Args>(args)...).out = '\0';
    environment[n++] = text;
    text += kText;
  };
  char run[33];
  for (size_t i = 0; i < sizeof(ImageIdentity::run_id); ++i)
    fmt::format_to_n(run + 2 * i, 2, "{:02x}", facts.run_id[i]);
  run[32] = '\0';
  set("CKPT_IMAGE_NAME={}", facts.name);
  set("CKPT_SEQUENCE={}", facts.sequence);
  set("CKPT_RUN_ID={}", static_cast<const char*>(run));
  set("CKPT_PROGRAM={}", facts.program);
  set("CKPT_PID={}", facts.pid);
  environment[n] = nullptr;
  static constinit char shell[] = "sh", option[] = "-c";
  shared_->argv[0] = shell;
  shared_->argv[1] = option;
  shared_->argv[2] = const_cast<char*>(command);
  shared_->argv[3] = nullptr;
  shared_->environment = environment;
  shared_->nanny_stack_top = stacks + kStack;
  shared_->child_stack_top = stacks + 2 * kStack;

  int image[2], ready[2];
  if (long r = sys::call(__NR_pipe2, image, O_CLOEXEC); sys::failed(r)) return not_started(r);
  input_ = moved_up(image[0]);
  pipe_ = moved_up(image[1]);
  if (long r = sys::call(__NR_pipe2, ready, O_CLOEXEC); sys::failed(r)) return not_started(r);
  started_ = moved_up(ready[0]), starting_ = moved_up(ready[1]);
  long output = -EBADF;
  if (user_settings().log) {
    const int log = open_log(dir_fd, 0);
    if (log >= 0) output = log;
  }
  if (sys::failed(output)) output = sys::call(__NR_openat, AT_FDCWD, "/dev/null", O_WRONLY | O_CLOEXEC, 0);
  if (sys::failed(output)) return not_started(output);
  output_ = moved_up(static_cast<int>(output));
  if (!input_.valid() || !pipe_.valid() || !started_.valid() || !starting_.valid() || !output_.valid())
    return not_started(EMFILE);
  sys::call(__NR_fcntl, pipe_.get(), static_cast<long>(F_SETPIPE_SZ), static_cast<long>(kPipeBytes));
  shared_->input = input_.get();
  shared_->output = output_.get();
  shared_->ready = starting_.get();
  return {};
}

Result<void> ImageCommand::launch() {
  shared_->parent = sys::getpid();
  const long child = ckpt_clone_thread(CLONE_VM, shared_->nanny_stack_top, nullptr, nullptr, nullptr,
                                       &ImageCommand::nanny, shared_);
  if (sys::failed(child)) return not_started(child);
  nanny_ = child;
  starting_.reset();
  input_.reset();
  output_.reset();
  return {};
}

Result<void> ImageCommand::await_launch() {
  // The read ends when the command is executed, or the process that was to execute it is gone.
  char none;
  while (sys::call(__NR_read, started_.get(), &none, 1) == -EINTR) {
  }
  started_.reset();
  if (shared_->error == 0) return {};
  const int error = shared_->error;
  pipe_.reset();
  wait_for_end();
  return not_started(error);
}

// Has the command ended, or does it within this time? A command that says nothing more may live on.
bool ImageCommand::ends_within(int64_t ms) const {
  if (nanny_ == 0) return true;
  const long fd = sys::call(__NR_pidfd_open, nanny_, 0L);
  // An older kernel, or a filter that forbids it: wait_for_end() then waits as long as it takes. A command
  // that was just asked to end must not be killed for that.
  if (sys::failed(fd)) return true;
  const ScopedFd pidfd(static_cast<int>(fd));
  const int64_t until = now_ns() + ms * 1'000'000;
  pollfd ended{pidfd.get(), POLLIN, 0};
  for (;;) {
    const int64_t left = until - now_ns();
    timespec wait{left > 0 ? left / 1'000'000'000 : 0, left > 0 ? left % 1'000'000'000 : 0};
    const long r = sys::call(__NR_ppoll, &ended, 1L, &wait, nullptr, 0L);
    if (r != -EINTR) return r == 1;
  }
}

int ImageCommand::wait_for_end() {
  if (nanny_ == 0) return -1;
  int status = 0;
  while (sys::call(__NR_wait4, nanny_, &status, __WCLONE, 0L) == -EINTR) {
  }
  nanny_ = 0;
  return shared_->status;
}

Error ImageCommand::ended(int status, const char* when) const {
  if (status < 0) {
    return make_error(ExitCode::kIo, 0,
                      "{}: nobody knows how the command of CKPT_TO ended (something killed its parent): {}",
                      name_, command_);
  }
  if (WIFSIGNALED(status)) {
    return make_error(ExitCode::kIo, 0, "{}: the command of CKPT_TO was killed by signal {}{}: {}", name_,
                      WTERMSIG(status), when, command_);
  }
  return make_error(ExitCode::kIo, 0, "{}: the command of CKPT_TO ended with status {}{}: {}", name_,
                    WEXITSTATUS(status), when, command_);
}

Result<void> ImageCommand::publish(FileBackend&, uint64_t, bool) {
  pipe_.reset();
  int status = wait_for_end();
  if (status == 0) return {};
  return ended(status, "");
}

void ImageCommand::remove() {
  input_.reset();  // nobody reads what was not launched
  // Before that the command has no group of its own.
  if (nanny_ != 0 && started_.valid() && !await_launch().ok()) return;
  if (nanny_ != 0) sys::call(__NR_kill, -nanny_, SIGTERM);  // a group of its own
  pipe_.reset();
  if (!ends_within(kPatienceMs)) sys::call(__NR_kill, -nanny_, SIGKILL);
  wait_for_end();
}

Error ImageCommand::explain(const Error& error) {
  if (error.sys_errno != EPIPE || nanny_ == 0) return error;
  // Nobody reads any more: this image is lost. The command has ended, or is just about to, but it may also
  // live on. The command is not waited for then: threads of the program may wait for buffers of this image.
  pipe_.reset();
  if (!ends_within(kEndsMs)) {
    return make_error(ExitCode::kIo, EPIPE, "{}: the command of CKPT_TO reads no more, and has not ended: {}",
                      name_, command_);
  }
  int status = wait_for_end();
  return ended(status, " before it had read the image");
}

}  // namespace ckpt
