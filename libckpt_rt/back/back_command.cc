#include "libckpt_rt/back/back_command.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <climits>

#include "base/memory/own_place.h"
#include "base/raii_fd.h"
#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/core/process/restart_entry.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/own_key_file.h"
#include "libckpt_rt/core/threads/of_ours/raw_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr size_t kStack = 32 << 10;
constexpr int kFirstFd = 10;  // above those that the command gets

// In a mapping of its own. The children read and write it until they execute sh.
struct Command {
  int output;
  long error;
  char* argv[7];
  char* environment[3];
  char path[2200], pid[16], image[PATH_MAX], key[2200];
  char program_path[2200];
  alignas(64) std::byte stacks[2][kStack];
};

void execute(void* command) {
  auto& c = *static_cast<Command*>(command);
  uint64_t none = 0;
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &none, 0L, 8L);
  c.error = sys::call(__NR_execve, "/bin/sh", c.argv, c.environment);
  sys::call(__NR_exit_group, 127L);
}

void nanny(void* command) {
  auto& c = *static_cast<Command*>(command);
  sys::call(__NR_setsid);
  struct {
    uint64_t handler = 0, flags = 0, restorer = 0, mask = 0;
  } by_default;
  for (int signal = 1; signal <= 64; ++signal) sys::call(__NR_rt_sigaction, signal, &by_default, 0L, 8L);
  const long null = sys::call(__NR_openat, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0L);
  sys::call(__NR_dup3, null, 0, 0);
  for (int fd : {1, 2}) sys::call(__NR_dup3, c.output, fd, 0);
  sys::call(__NR_close_range, 3L, UINT_MAX, 0L);
  const long child = ckpt_clone_thread(CLONE_VM | CLONE_VFORK, c.stacks[1] + kStack, nullptr, nullptr,
                                       nullptr, &execute, command);
  if (sys::failed(child)) c.error = child;
  sys::call(__NR_exit_group, 0L);
}

// Beside the library's directory, as they are installed and as they are built.
bool find_command(Command& c) {
  Dl_info info{};
  if (!dynamic_linker::describe(reinterpret_cast<const void*>(&ckpt_restart_entry), info) ||
      info.dli_fname == nullptr)
    return false;
  std::string_view directory(info.dli_fname);
  const size_t slash = directory.rfind('/');
  directory = slash == directory.npos ? "." : directory.substr(0, slash);
  for (const char* up : {"/../bin/ckpt", "/../../bin/ckpt"}) {
    *fmt::format_to_n(c.program_path, sizeof(c.program_path) - 1, "{}{}", directory, up).out = '\0';
    if (sys::call(__NR_faccessat, AT_FDCWD, c.program_path, 1L /* X_OK */) == 0) return true;
  }
  return false;
}

// The last line is "exit CODE", what comes before it the command's own words.
Error understand(char* text, size_t length) {
  std::string_view all(text, length);
  const size_t mark = all.rfind("exit ");
  int code = 0;
  for (size_t i = mark == all.npos ? length : mark + 5; i < length && text[i] >= '0' && text[i] <= '9'; ++i)
    code = code * 10 + (text[i] - '0');
  std::string_view words = all.substr(0, mark == all.npos ? length : mark);
  if (words.starts_with("ckpt: ")) words.remove_prefix(6);
  while (!words.empty() && words.back() == '\n') words.remove_suffix(1);
  if (code <= 0 || code >= 127) code = static_cast<int>(ExitCode::kInternal);
  return make_error(static_cast<ExitCode>(code), 0, "{}",
                    words.empty() ? "ckpt back could not be run" : words);
}

}  // namespace

Error go_back_by_command(const char* image) {
  const size_t bytes = (sizeof(Command) + kPageSize - 1) & ~(kPageSize - 1);
  const long p = map_own(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (sys::failed(p)) return make_error(ExitCode::kInternal, ENOMEM, "no memory to start ckpt back");
  struct Mapped {
    long at;
    size_t bytes;
    ~Mapped() { sys::call(__NR_munmap, at, bytes); }
  } mapped{p, bytes};
  auto& c = *reinterpret_cast<Command*>(p);
  if (!find_command(c))
    return make_error(ExitCode::kNotFound, ENOENT, "ckpt is not beside libckpt_rt.so; install both together");
  if (image != nullptr && std::strlen(image) >= sizeof(c.image))
    return make_error(ExitCode::kUsage, 0, "the path of the image is too long");
  *fmt::format_to_n(c.pid, sizeof(c.pid) - 1, "{}", this_process.pid).out = '\0';
  if (image != nullptr) std::memcpy(c.image, image, std::strlen(image) + 1);
  *fmt::format_to_n(c.path, sizeof(c.path) - 1, "PATH=/usr/bin:/bin").out = '\0';
  *fmt::format_to_n(c.key, sizeof(c.key) - 1, "CKPT_KEY_FILE={}", own_key_file::path()).out = '\0';
  static constinit char shell[] = "sh", option[] = "-c",
                        script[] = "\"$0\" back \"$@\" 2>&1 >/dev/null; echo \"exit $?\"";
  char* const argv[] = {shell, option, script, c.program_path, c.pid, image != nullptr ? c.image : nullptr};
  std::memcpy(c.argv, argv, sizeof(argv));  // the rest is zero: its end
  c.environment[0] = c.path;
  c.environment[1] = own_key_file::path()[0] != '\0' ? c.key : nullptr;

  int ends[2];
  if (long r = sys::call(__NR_pipe2, ends, O_CLOEXEC); sys::failed(r))
    return make_error(ExitCode::kSystem, static_cast<int>(r), "no pipe for ckpt back ({})",
                      errno_name(static_cast<int>(r)));
  ScopedFd reading(ends[0]), writing(ends[1]);
  const long high =
      sys::call(__NR_fcntl, writing.get(), static_cast<long>(F_DUPFD_CLOEXEC), static_cast<long>(kFirstFd));
  if (!sys::failed(high)) writing.reset(static_cast<int>(high));
  c.output = writing.get();
  uint64_t all = ~0ull, before = 0;
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, 8L);
  const long child =
      ckpt_clone_thread(CLONE_VM | CLONE_VFORK, c.stacks[0] + kStack, nullptr, nullptr, nullptr, &nanny, &c);
  int status = 0;
  while (!sys::failed(child) && sys::call(__NR_wait4, child, &status, __WCLONE, 0L) == -EINTR) {
  }
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &before, 0L, 8L);
  writing.reset();
  const long failed = sys::failed(child) ? child : c.error;
  if (failed != 0)
    return make_error(ExitCode::kSystem, static_cast<int>(failed), "ckpt back cannot be started ({})",
                      errno_name(static_cast<int>(failed)));
  char text[1024];
  size_t length = 0;
  for (;;) {
    const long n = sys::call(__NR_read, reading.get(), text + length, sizeof(text) - length);
    if (n == -EINTR) continue;
    if (n <= 0) break;
    length += static_cast<size_t>(n);
    if (length == sizeof(text)) {  // the end is what counts
      std::memmove(text + 256, text + 512, 512);
      length -= 256;
    }
  }
  return understand(text, length);
}

}  // namespace ckpt
