#include "job/capture/members/process_look.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/elf/static_go.h"
#include "base/files/directory_scan.h"
#include "base/protocol/beside_protocol.h"
#include "base/protocol/control_protocol.h"
#include "base/raii_fd.h"
#include "job/identity/identity.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

struct Path {
  char text[64];
};
template <typename... Args>
Path proc_path(fmt::format_string<Args...> format, Args&&... args) {
  Path path;
  *fmt::format_to_n(path.text, sizeof(path.text) - 1, format, std::forward<Args>(args)...).out = '\0';
  return path;
}

ScopedFd open_for_reading(const Path& path, int flags = 0) {
  const long fd = sys::call(__NR_openat, AT_FDCWD, path.text, O_RDONLY | O_CLOEXEC | flags, 0L);
  return ScopedFd(sys::failed(fd) ? -1 : static_cast<int>(fd));
}

int64_t decimal(std::string_view text) {
  uint64_t value = 0;  // wraps: a limit, which is not looked at, may be 2^64 - 1
  bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  for (char c : text) {
    if (c < '0' || c > '9') break;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return static_cast<int64_t>(negative ? 0 - value : value);
}

// The state of a thread, as /proc has it; '\0': it is not there.
char state_of(int tid) {
  ProcessLook look;
  return look_at(tid, look) ? look.state : '\0';
}

// A process goes on when its first thread has ended (pthread_exit in main), but /proc/PID shows no memory
// then: that of another thread does.
int thread_with_memory(int pid) {
  if (state_of(pid) != 'Z') return pid;
  int found = pid;
  ScopedFd tasks = open_for_reading(proc_path("/proc/{}/task", pid), O_DIRECTORY);
  scan_directory(tasks.get(), [&](std::string_view name) {
    if (found != pid || name.empty() || name[0] < '0' || name[0] > '9') return;
    const int tid = static_cast<int>(decimal(name));
    const char state = tid == pid ? 'Z' : state_of(tid);
    if (state != '\0' && state != 'Z' && state != 'X') found = tid;
  });
  return found;
}

bool is_ours(int pid, int tid) {
  char name[32];
  const long n = read_small_file(proc_path("/proc/{}/task/{}/comm", pid, tid).text, name, sizeof(name));
  return n > 0 && std::string_view(name, static_cast<size_t>(n)).starts_with("ckpt_rt\n");
}

// Numbers of a file of any length, separated by blanks.
bool append_numbers(int fd, ArenaVector<int>& out) {
  char text[4096];
  int64_t number = -1;
  for (;;) {
    const long n = sys::call(__NR_read, fd, text, sizeof(text));
    if (n <= 0) break;
    for (long i = 0; i < n; ++i) {
      if (text[i] >= '0' && text[i] <= '9') {
        number = (number < 0 ? 0 : number) * 10 + (text[i] - '0');
      } else if (number >= 0) {
        if (!out.push_back(static_cast<int>(number))) return false;
        number = -1;
      }
    }
  }
  return number < 0 || out.push_back(static_cast<int>(number));
}

// Visits each variable, until visit() says false. False: it cannot be read.
template <typename Visit>
bool scan_environment(int pid, Visit visit) {
  ScopedFd file = open_for_reading(proc_path("/proc/{}/environ", thread_with_memory(pid)));
  if (!file.valid()) return false;
  char text[8192];
  size_t have = 0;
  bool skip = false;  // the rest of a variable that is longer than the buffer
  for (;;) {
    const long n = sys::call(__NR_read, file.get(), text + have, sizeof(text) - have);
    if (n <= 0) return n == 0;
    have += static_cast<size_t>(n);
    size_t at = 0;
    while (at < have) {
      const void* end = std::memchr(text + at, '\0', have - at);
      if (end == nullptr) break;
      const size_t length = static_cast<size_t>(static_cast<const char*>(end) - (text + at));
      if (!skip && !visit(std::string_view(text + at, length))) return true;
      skip = false;
      at += length + 1;
    }
    if (at == 0 && have == sizeof(text)) {
      if (!skip && !visit(std::string_view(text, have))) return true;
      skip = true;
      at = have;
    }
    std::memmove(text, text + at, have - at);
    have -= at;
  }
}

// 1: the text of its mappings has the word; 0: not; -1: it cannot be read. *any: it has some text.
int find_in_maps(int pid, std::string_view word, bool* any) {
  ScopedFd maps = open_for_reading(proc_path("/proc/{}/maps", thread_with_memory(pid)));
  if (!maps.valid()) return -1;
  char text[8192];
  size_t have = 0;
  for (;;) {
    const long got = sys::call(__NR_read, maps.get(), text + have, sizeof(text) - have);
    if (got <= 0) return got == 0 ? 0 : -1;
    *any = true;
    have += static_cast<size_t>(got);
    if (std::string_view(text, have).find(word) != std::string_view::npos) return 1;
    // The word that is searched for may lie across two reads.
    const size_t tail = std::min(have, word.size());
    std::memmove(text, text + have - tail, tail);
    have = tail;
  }
}

// Whether its program asks for a dynamic linker. A program that cannot be read is taken for one that does.
bool has_interpreter(int pid) {
  ScopedFd file = open_for_reading(proc_path("/proc/{}/exe", thread_with_memory(pid)));
  if (!file.valid()) return true;
  Elf64_Ehdr header;
  if (sys::call(__NR_pread64, file.get(), &header, sizeof(header), 0L) != sizeof(header)) return true;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
    return false;  // nothing that the library is in
  for (uint32_t i = 0; i < header.e_phnum && i < 64; ++i) {
    Elf64_Phdr segment;
    const uint64_t at = header.e_phoff + uint64_t{i} * header.e_phentsize;
    if (sys::call(__NR_pread64, file.get(), &segment, sizeof(segment), at) != sizeof(segment)) return true;
    if (segment.p_type == PT_INTERP) return true;
  }
  return false;
}

bool is_go(int pid) {
  const ScopedFd file = open_for_reading(proc_path("/proc/{}/exe", pid));
  return file.valid() && is_static_go(file.get());
}

}  // namespace

bool may_look_at(int pid) {
  const long maps = sys::call(__NR_openat, AT_FDCWD, proc_path("/proc/{}/maps", thread_with_memory(pid)).text,
                              O_RDONLY | O_CLOEXEC, 0);
  if (!sys::failed(maps)) sys::call(__NR_close, maps);
  return maps != -EACCES && maps != -EPERM;
}

bool look_at(int pid, ProcessLook& look) {
  char text[1024];
  const long n = read_small_file(proc_path("/proc/{}/stat", pid).text, text, sizeof(text));
  if (n <= 0) return false;
  const std::string_view line(text, static_cast<size_t>(n));
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == line.npos || close == line.npos || close + 2 >= line.size()) return false;
  look = {};
  look.pid = pid;
  const std::string_view name = line.substr(open + 1, close - open - 1);
  look.name[name.copy(look.name, sizeof(look.name) - 1)] = '\0';
  look.state = line[close + 2];
  // Fields from the third, the state, on.
  size_t at = close + 2;
  for (int field = 3; at < line.size(); ++field) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const int64_t value = decimal(line.substr(at, end - at));
    switch (field) {
      case 4:
        look.ppid = static_cast<int>(value);
        break;
      case 5:
        look.pgid = static_cast<int>(value);
        break;
      case 6:
        look.sid = static_cast<int>(value);
        break;
      case 7:
        look.tty = static_cast<int>(value);
        break;
      case 8:
        look.foreground_group = static_cast<int>(value);
        break;
      case 20:
        look.threads = static_cast<uint32_t>(value);
        break;
      case 22:
        look.started = static_cast<uint64_t>(value);
        break;
      case 38:
        look.exit_signal = static_cast<int>(value);
        break;
      case 52:
        look.exit_status = static_cast<int>(value);
        break;
      default:
        break;
    }
    at = end + 1;
  }
  return true;
}

bool list_children(int pid, ArenaVector<int>& children) {
  bool all = true;
  // A process or thread that is gone, or is hidden from us, has none. Else some may be missed: no descriptor
  // is left, or no memory of the kernel's.
  const auto open = [&](const Path& path, int flags) {
    const long fd = sys::call(__NR_openat, AT_FDCWD, path.text, O_RDONLY | O_CLOEXEC | flags, 0L);
    all = all && (!sys::failed(fd) || fd == -ENOENT || fd == -ESRCH || fd == -EACCES || fd == -EPERM);
    return ScopedFd(sys::failed(fd) ? -1 : static_cast<int>(fd));
  };
  ScopedFd tasks = open(proc_path("/proc/{}/task", pid), O_DIRECTORY);
  if (!tasks.valid()) return all;
  scan_directory(tasks.get(), [&](std::string_view name) {
    if (!all || name.empty() || name[0] < '0' || name[0] > '9') return;
    const int tid = static_cast<int>(decimal(name));
    ScopedFd file = open(proc_path("/proc/{}/task/{}/children", pid, tid), 0);
    if (!file.valid()) return;
    const size_t before = children.size();
    all = append_numbers(file.get(), children);
    if (children.size() != before && is_ours(pid, tid)) children.truncate(before);
  });
  return all;
}

int newest_pid() {
  // Another file may be mounted there, as lxcfs does, which is not new each time.
  const ScopedFd file = open_for_reading(proc_path("/proc/loadavg"));
  struct statfs system {};
  if (!file.valid() || sys::call(__NR_fstatfs, file.get(), &system) != 0 || system.f_type != PROC_SUPER_MAGIC)
    return 0;
  char text[128];
  const long n = read_small_file(file.get(), text, sizeof(text));
  if (n <= 0) return 0;
  std::string_view line(text, static_cast<size_t>(n));
  const size_t last = line.rfind(' ');
  return last == line.npos ? 0 : static_cast<int>(decimal(line.substr(last + 1)));
}

int moved_signal(int pid) {
  ScopedFd maps = open_for_reading(proc_path("/proc/{}/maps", thread_with_memory(pid)));
  char text[8192];
  for (size_t have = 0; maps.valid();) {
    const long got = sys::call(__NR_read, maps.get(), text + have, sizeof(text) - have);
    if (got <= 0) return 0;
    have += static_cast<size_t>(got);
    const std::string_view read(text, have);
    const size_t at = read.find(kMovedSignalName);
    constexpr size_t kDigits = 3;
    if (at != read.npos && have - at >= kMovedSignalName.size() + kDigits)
      return static_cast<int>(decimal(read.substr(at + kMovedSignalName.size())));
    const size_t tail = std::min(have, kMovedSignalName.size() + kDigits);
    std::memmove(text, text + have - tail, tail);
    have = tail;
  }
  return 0;
}

bool has_stopped_thread(int pid) {
  ScopedFd tasks = open_for_reading(proc_path("/proc/{}/task", pid), O_DIRECTORY);
  bool found = false;
  if (!tasks.valid()) return false;
  scan_directory(tasks.get(), [&](std::string_view name) {
    if (found || name.empty() || name[0] < '0' || name[0] > '9') return;
    char text[256];
    const auto path = proc_path("/proc/{}/task/{}/stat", pid, static_cast<int>(decimal(name)));
    const long n = read_small_file(path.text, text, sizeof(text));
    if (n <= 0) return;
    const std::string_view line(text, static_cast<size_t>(n));
    const size_t close = line.rfind(')');
    found = close != line.npos && line.substr(close).starts_with(") T");
  });
  return found;
}

int tracer_of(int pid) {
  StatusField tracer[] = {{"TracerPid:"}};
  read_status(proc_path("/proc/{}/status", pid).text, tracer);
  return static_cast<int>(tracer[0].value);
}

int process_of(int tid) {
  StatusField process[] = {{"Tgid:"}};
  read_status(proc_path("/proc/{}/status", tid).text, process);
  return static_cast<int>(process[0].value);
}

bool blocks_signal(int pid, int signal) {
  StatusField blocked[] = {{"SigBlk:", 16}};
  read_status(proc_path("/proc/{}/status", pid).text, blocked);
  return (blocked[0].value >> (signal - 1) & 1) != 0;
}

bool is_begun_beside(int pid) {
  ProcessLook tracer;
  const int by = tracer_of(pid);
  return by != 0 && look_at(by, tracer) && std::string_view(tracer.name) == kBesideCommand;
}

Preloaded look_for_library(int pid, int& signal) {
  StatusField fields[] = {{"SigCgt:", 16}};
  if (!read_status(proc_path("/proc/{}/status", pid).text, fields)) return Preloaded::kGone;
  const uint64_t caught = fields[0].value;
  bool any_maps = false;
  const int in_maps = find_in_maps(pid, "/libckpt_rt.so", &any_maps);
  const bool mapped = in_maps > 0, maps_read = in_maps >= 0;
  const auto is_caught = [caught](int s) { return s >= 1 && s <= 64 && (caught >> (s - 1) & 1) != 0; };
  if (const int moved = mapped ? moved_signal(pid) : 0; is_caught(moved)) signal = moved;
  if (mapped) return (caught >> (signal - 1) & 1) != 0 ? Preloaded::kReady : Preloaded::kNotYet;
  ProcessLook look;
  if (!look_at(pid, look) || look.ended()) return Preloaded::kGone;
  // The process ends, and its memory has gone ahead; or it executes another program just now.
  if (maps_read && !any_maps) return Preloaded::kNotYet;
  bool preloads = false, asleep = false, any_variable = false, beside = false;
  const bool environment = scan_environment(pid, [&](std::string_view variable) {
    preloads = preloads || (variable.starts_with("LD_PRELOAD=") &&
                            variable.find("libckpt_rt.so") != std::string_view::npos);
    asleep = asleep || variable == "CKPT_DISABLE=1";
    beside = beside || variable.starts_with(kBesideVariable);
    any_variable = true;
    return true;
  });
  // ckpt-beside, which is about to execute its program; or that program, while it is traced.
  if (beside || (preloads && is_go(pid) && is_begun_beside(pid))) return Preloaded::kNotYet;
  if (!has_interpreter(pid)) return Preloaded::kStatic;
  if (environment && maps_read && !any_variable) return Preloaded::kBare;
  if (!environment || !maps_read || !preloads) return Preloaded::kClean;
  return asleep ? Preloaded::kAsleep : Preloaded::kNotYet;
}

const char* preloaded_reason(Preloaded how) {
  switch (how) {
    case Preloaded::kReady:
      return "preloaded";
    case Preloaded::kNotYet:
      return "starting";
    case Preloaded::kStatic:
      return "static";
    case Preloaded::kClean:
    case Preloaded::kBare:
      return "not preloaded";
    case Preloaded::kAsleep:
      return "disabled";
    case Preloaded::kGone:
      return "gone";
  }
  return "unknown";
}

bool read_variable(int pid, const char* name, char* value, size_t size) {
  const std::string_view wanted(name);
  bool found = false;
  scan_environment(pid, [&](std::string_view variable) {
    if (!variable.starts_with(wanted) || variable.size() <= wanted.size() || variable[wanted.size()] != '=')
      return true;
    variable.remove_prefix(wanted.size() + 1);
    found = variable.size() < size;
    if (found) {
      std::memcpy(value, variable.data(), variable.size());
      value[variable.size()] = '\0';
    }
    return false;
  });
  return found;
}

int environment_names_job(int pid, const char digits[33]) {
  int named = -1;
  scan_environment(pid, [&](std::string_view variable) {
    constexpr std::string_view kName = "CKPT_JOB=";
    if (!variable.starts_with(kName)) return true;
    named = variable.substr(kName.size(), 32) == std::string_view(digits, 32) ? 1 : 0;
    return false;
  });
  return named;
}

bool mappings_name_job(int pid, const char digits[33]) {
  char word[64];
  *fmt::format_to_n(word, sizeof(word) - 1, "/memfd:{}{}", kSignName, digits).out = '\0';
  bool any = false;
  return find_in_maps(pid, word, &any) == 1;
}

}  // namespace ckpt::job
