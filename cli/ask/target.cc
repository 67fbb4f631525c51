#include "cli/ask/target.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "base/elf/static_go.h"
#include "base/memory/parents_memory.h"
#include "base/protocol/beside_protocol.h"
#include "base/protocol/control_protocol.h"
#include "base/raii_fd.h"
#include "base/settings/settings.h"
#include "cli/ask/children.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

std::string proc_path(pid_t pid, const char* file) { return fmt::format("/proc/{}/{}", pid, file); }

// The whole file; false with errno when it cannot be read. A process that exits in between gives ESRCH.
bool read_proc(pid_t pid, const char* file, std::string* text) {
  errno = 0;
  std::ifstream in(proc_path(pid, file), std::ios::binary);
  if (!in) return false;
  std::ostringstream all;
  all << in.rdbuf();
  *text = all.str();
  return !in.bad() && !(text->empty() && errno != 0);
}

// The value of a line "Key:\tvalue" of /proc/PID/status.
std::string status_value(const std::string& status, const std::string& key) {
  size_t at = ("\n" + status).find("\n" + key + ":");
  if (at == std::string::npos) return "";
  size_t begin = status.find_first_not_of(" \t", at + key.size() + 1);
  return status.substr(begin, status.find('\n', begin) - begin);
}

std::string last_word(const std::string& text) { return text.substr(text.find_last_of(" \t") + 1); }

std::string namespace_of(const std::string& process, const char* kind) {
  char link[64];
  ssize_t n = readlink(fmt::format("/proc/{}/ns/{}", process, kind).c_str(), link, sizeof(link));
  return n > 0 ? std::string(link, static_cast<size_t>(n)) : "";
}

Error gone(pid_t pid) {
  return failure(ExitCode::kNoProcess, fmt::format("{}", pid), "no such process",
                 "look it up with pgrep or ps");
}

// The path of the mapped libckpt_rt.so, empty if there is none.
std::string mapped_library(const std::string& maps) {
  constexpr std::string_view kName = "/libckpt_rt.so";
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    std::string path = line.substr(slash);
    constexpr std::string_view kDeleted = " (deleted)";
    if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
    if (path.ends_with(kName)) return path;
  }
  return "";
}

// The signal that the name of a mapping tells, 0 if there is none.
int moved_signal(const std::string& maps) {
  const size_t at = maps.find(kMovedSignalName);
  int signal = 0;
  if (at != std::string::npos)
    std::from_chars(maps.data() + at + kMovedSignalName.size(), maps.data() + maps.size(), signal);
  return signal >= 1 && signal <= 64 ? signal : 0;
}

const char* lookup_environ(const char* name, void* context) {
  const auto& environ_block = *static_cast<const std::string*>(context);
  std::string wanted = std::string(name) + "=";
  for (size_t at = 0; at < environ_block.size();) {
    const char* entry = environ_block.c_str() + at;
    if (strncmp(entry, wanted.c_str(), wanted.size()) == 0) return entry + wanted.size();
    at += strlen(entry) + 1;
  }
  return nullptr;
}

}  // namespace

Result<pid_t> parse_pid(const std::string& text) {
  pid_t pid = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc() || end != text.data() + text.size() || pid <= 0) {
    return failure(ExitCode::kUsage, text, "is not a process id", "give the number that pgrep or ps shows");
  }
  return pid;
}

char process_state(pid_t pid) {
  std::string stat;
  if (!read_proc(pid, "stat", &stat)) return '\0';
  size_t paren = stat.rfind(')');
  return paren != std::string::npos && paren + 2 < stat.size() ? stat[paren + 2] : '\0';
}

// "task/TID/" of a thread that has not exited; empty when there is none.
std::string live_thread(pid_t pid) {
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator(proc_path(pid, "task"), ignored)) {
    std::string name = "task/" + task.path().filename().string() + "/", status;
    if (!read_proc(pid, (name + "status").c_str(), &status)) continue;
    std::string state = status_value(status, "State");
    if (!state.empty() && state[0] != 'Z' && state[0] != 'X') return name;
  }
  return {};
}

// A thread that our signal would kill, since it may not even answer it; empty: none.
std::string strict_thread(pid_t pid) {
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator(proc_path(pid, "task"), ignored)) {
    std::string tid = task.path().filename().string();
    std::string status;
    if (read_proc(pid, ("task/" + tid + "/status").c_str(), &status) &&
        status_value(status, "Seccomp") == "1")
      return tid;
  }
  return {};
}

bool checkpoint_under_way(pid_t pid) {
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator(proc_path(pid, "task"), ignored)) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    if (std::getline(comm, name) && name == "ckpt_rt") return true;  // RawThread's name
  }
  return false;
}

namespace {

// The library may be about to start in a process that it is not mapped in. The kernel sets up the environment
// last, and maps the dynamic linker with the program. tracer: its name.
bool is_about_to_load(pid_t pid, const std::string& tracer, const std::string& maps,
                      const std::string& environment) {
  if (maps.empty() || environment.empty()) return true;
  // ckpt-beside, which is about to execute its program; or that program, while it is traced.
  if (lookup_environ(kBesideVariable, const_cast<std::string*>(&environment)) != nullptr) return true;
  const char* preload = lookup_environ("LD_PRELOAD", const_cast<std::string*>(&environment));
  if (preload == nullptr || strstr(preload, "libckpt_rt.so") == nullptr) return false;
  if (maps.find("/ld-linux") != maps.npos) return true;
  const ScopedFd program(open(proc_path(pid, "exe").c_str(), O_RDONLY | O_CLOEXEC));
  return program.valid() && is_static_go(program.get()) && tracer == std::string(kBesideCommand) + "\n";
}

// `ckpt run -- PROGRAM` that has not executed the program yet. With --hosts it stays.
bool is_about_to_run(pid_t pid) {
  struct stat own {
  }, its{};
  std::string words;
  if (stat("/proc/self/exe", &own) != 0 || stat(proc_path(pid, "exe").c_str(), &its) != 0 ||
      own.st_dev != its.st_dev || own.st_ino != its.st_ino || !read_proc(pid, "cmdline", &words))
    return false;
  const std::string_view rest = std::string_view(words).substr(std::min(words.find('\0'), words.size()));
  return rest.starts_with(std::string_view("\0run\0", 5)) &&
         rest.find(std::string_view("\0--hosts", 8)) == rest.npos;
}

// Which program the process runs: the file, and where execve has put things (proc(5), /proc/PID/stat fields
// 45 to 51).
std::string running_program(pid_t pid) {
  std::string stat_text;
  struct stat file {};
  if (!read_proc(pid, "stat", &stat_text) || stat(proc_path(pid, "exe").c_str(), &file) != 0) return {};
  const size_t paren = stat_text.rfind(')');
  std::istringstream fields(paren != stat_text.npos ? stat_text.substr(paren + 1) : "");
  std::string field, addresses;
  for (int number = 3; fields >> field && number <= 51; ++number) {
    if (number >= 45) addresses += " " + field;
  }
  return fmt::format("{}:{}{}", file.st_dev, file.st_ino, addresses);
}

// status: the text of /proc/PID/status; which: "SigBlk", "SigCgt", "SigIgn".
bool has_signal(const std::string& status, const char* which, int signal) {
  unsigned long long mask = 0;
  std::istringstream(status_value(status, which)) >> std::hex >> mask;
  return (mask >> (signal - 1) & 1) != 0;
}

// ckpt-restart stays beside what it has brought back, and another of it in a pid namespace as its first
// process. The program is the first below with the library in it; 0: there is none, or pid is no
// ckpt-restart.
pid_t restarted_by(pid_t pid) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink(proc_path(pid, "exe"), error);
  if (error || program.filename() != "ckpt-restart") return 0;
  std::vector<pid_t> below{pid};
  for (size_t i = 0; i < below.size(); ++i) {
    std::string maps;
    if (i != 0 && read_proc(below[i], "maps", &maps) && !mapped_library(maps).empty()) return below[i];
    for (const pid_t child : children_of(below[i])) below.push_back(child);
  }
  return 0;
}

// Sets the user, whom we may be to ask.
Result<void> look_at_user(const std::string& status, const std::string& label, Target& t) {
  unsigned real = 0, effective = 0;
  std::istringstream(status_value(status, "Uid")) >> real >> effective;
  if (geteuid() != 0 && effective != geteuid()) {
    return failure(ExitCode::kPermission, label, fmt::format("belongs to user {}", effective),
                   "ask as that user or as root");
  }
  t.uid = effective;
  return {};
}

// A process whose main thread called pthread_exit looks like a zombie; its other threads run on. Then
// *of_thread is the folder of one of those in /proc/PID, and *status is of it.
Result<void> look_whether_it_lives(const std::string& label, Target& t, std::string* status,
                                   std::string* of_thread) {
  if (t.state == 'Z') {
    *of_thread = live_thread(t.pid);
    if (!of_thread->empty() && read_proc(t.pid, (*of_thread + "status").c_str(), status)) {
      t.state = status_value(*status, "State")[0];
    }
  }
  if (t.state == 'Z' || t.state == 'X') {
    return failure(ExitCode::kNoProcess, label, "has exited already (zombie)",
                   "start it again, or restart an image");
  }
  // 't' may be a tracer's stop of a moment: such a program is asked, and may not answer in time.
  if (status_value(*status, "Kthread") == "1" || status_value(*status, "VmSize").empty()) {
    return failure(ExitCode::kNoProcess, label, "is a kernel thread", "give the id of a program");
  }
  return {};
}

// Sets the signal by which it is asked.
Result<void> look_at_signal(const std::string& status, const std::string& maps, const std::string& label,
                            Target& t, bool* starting) {
  if (const std::string strict = strict_thread(t.pid); !strict.empty()) {
    return failure(
        ExitCode::kUnsupported, label,
        fmt::format("thread {} has forbidden itself all but four system calls (strict seccomp)", strict),
        "it cannot stand still for a checkpoint; there is none of this program");
  }
  if (const int moved = moved_signal(maps); moved != 0 && has_signal(status, "SigCgt", moved))
    t.signal = moved;
  // Its library has seen the filter come (hooks::begin_deadly_filter).
  if (has_signal(status, "SigIgn", t.signal) && status_value(status, "Seccomp") == "2") {
    return failure(ExitCode::kUnsupported, label,
                   "has a filter of system calls (seccomp) that would end it at a checkpoint",
                   "there is none of this program while it has that");
  }
  if (!has_signal(status, "SigCgt", t.signal)) {
    *starting = true;
    return failure(ExitCode::kUnavailable, label,
                   fmt::format("does not handle checkpoint signal {} (yet)", t.signal),
                   "ask again once it runs; if it stays so, see the log in its image directory");
  }
  return {};
}

// *starting: what is said of it may pass soon, by itself.
Result<Target> examine(pid_t pid, bool* starting) {
  *starting = false;
  Target t;
  t.pid = pid;
  std::string label = fmt::format("{}", pid);
  std::string status;
  t.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!t.pidfd.valid() && errno != EINVAL && errno != ENOENT) return gone(pid);
  if (!read_proc(pid, "status", &status)) return gone(pid);
  t.name = status_value(status, "Name");
  t.state = status_value(status, "State")[0];
  label = fmt::format("{} ({})", pid, t.name);
  if (std::string tgid = status_value(status, "Tgid"); tgid != fmt::format("{}", pid)) {
    return failure(ExitCode::kNoProcess, label, fmt::format("is a thread of process {}", tgid),
                   fmt::format("ask the process: {}", tgid));
  }
  if (!t.pidfd.valid()) return gone(pid);
  const int ppid = std::atoi(status_value(status, "PPid").c_str());
  if (has_parents_memory(pid, ppid, [&] { return has_signal(status, "SigBlk", kDefaultCheckpointSignal); })) {
    *starting = true;
    return failure(ExitCode::kUnavailable, label, "has its parent's memory until it executes another program",
                   "ask again then, or ask its parent");
  }
  const std::string program = running_program(pid);
  // From here on, the signals that are read are the process's own.
  if (!read_proc(pid, "status", &status)) return gone(pid);
  // Behind the program and ahead of what it maps: when ckpt-beside lets go of it, the library is mapped.
  std::string tracer;
  if (const int by = std::atoi(status_value(status, "TracerPid").c_str()); by != 0)
    (void)read_proc(by, "comm", &tracer);

  CKPT_TRY(look_at_user(status, label, t));
  std::string of_thread;
  CKPT_TRY(look_whether_it_lives(label, t, &status, &of_thread));
  std::string inner = last_word(status_value(status, "NStgid"));
  auto inner_pid = parse_pid(inner);
  t.inner_pid = inner_pid.ok() ? *inner_pid : pid;

  std::string maps, environment;
  if (!read_proc(pid, (of_thread + "maps").c_str(), &maps) ||
      !read_proc(pid, (of_thread + "environ").c_str(), &environment)) {
    int error = errno;
    // ESRCH: it ends, and its memory has gone ahead.
    if (error == ESRCH || process_state(pid) == '\0') return gone(pid);
    return failure(ExitCode::kPermission, label,
                   fmt::format("its memory map cannot be read: {}", strerror(error)),
                   "it has made itself undumpable, or runs with more rights: ask as root");
  }
  t.library = mapped_library(maps);
  if (t.library.empty()) {
    if (const pid_t restarted = restarted_by(pid); restarted != 0) return examine(restarted, starting);
    // Asked in this order: if it executes another program meanwhile, the last one says so.
    *starting = is_about_to_load(pid, tracer, maps, environment) || is_about_to_run(pid) ||
                running_program(pid) != program;
    return failure(ExitCode::kNoProcess, label, "runs without libckpt_rt.so",
                   "start it with: ckpt run -- PROGRAM, or with LD_PRELOAD=libckpt_rt.so");
  }
  auto settings = parse_settings(lookup_environ, &environment);
  if (!settings.ok()) return settings.error();
  if (settings->disabled) {
    return failure(ExitCode::kNoProcess, label, "was started with CKPT_DISABLE=1", "start it without");
  }
  t.signal = settings->signal;
  CKPT_TRY(look_at_signal(status, maps, label, t, starting));
  std::string network = namespace_of(fmt::format("{}", pid), "net");
  t.other_network = !network.empty() && network != namespace_of("self", "net");
  return t;
}

}  // namespace

Result<Target> examine_target(pid_t pid, bool* starting) {
  bool of_no_use;
  return examine(pid, starting != nullptr ? starting : &of_no_use);
}

Result<Target> await_target(pid_t pid, int64_t most_ns) {
  for (const int64_t until = now_ns() + most_ns;;) {
    bool starting;
    auto target = examine(pid, &starting);
    if (target.ok() || !starting || now_ns() >= until || process_state(pid) == 'T') return target;
    constexpr timespec kMoment{0, 5'000'000};
    nanosleep(&kMoment, nullptr);
  }
}

}  // namespace ckpt::cli
