#include "libckpt_rt/core/kernel/task_list.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>

#include "base/files/directory_scan.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

uint64_t hex_after(std::string_view text, std::string_view key) {
  std::string_view line = line_of(text, key);
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t")));
  return take_hex(line);
}

constexpr unsigned long kExitingFlag = 0x00000004;  // PF_EXITING
constexpr unsigned long kWorkerFlags = 0x00000010 /* PF_IO_WORKER */ | 0x00004000 /* PF_USER_WORKER */;

}  // namespace

long read_small_file(int fd, char* buffer, size_t size) {
  size_t n = 0;
  while (n < size - 1) {
    long r = sys::call(__NR_pread64, fd, buffer + n, size - 1 - n, n);
    if (r < 0) return r;
    if (r == 0) break;
    n += static_cast<size_t>(r);
  }
  buffer[n] = '\0';
  return static_cast<long>(n);
}

long read_small_file(const char* path, char* buffer, size_t size) {
  ScopedFd fd(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0)));
  if (!fd.valid()) return fd.release();
  return read_small_file(fd.get(), buffer, size);
}

bool list_tasks(ArenaVector<int>& tids) {
  tids.clear();
  ScopedFd dir(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)));
  if (!dir.valid()) {
    dir.release();
    return false;
  }
  alignas(8) char buffer[4096];
  for (;;) {
    long n = sys::call(__NR_getdents64, dir.get(), buffer, sizeof(buffer));
    if (n < 0) return false;
    if (n == 0) return true;
    for (long at = 0; at < n;) {
      auto* d = reinterpret_cast<DirectoryEntry*>(buffer + at);
      at += d->bytes;
      int tid = 0;
      for (const char* c = d->name; *c >= '0' && *c <= '9'; ++c) tid = tid * 10 + (*c - '0');
      if (tid != 0 && !tids.push_back(tid)) return false;
    }
  }
}

bool is_task(int tid) {
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}", tid).out = '\0';
  struct stat st;
  return sys::call(__NR_newfstatat, AT_FDCWD, path, &st, 0) == 0;
}

long count_tasks() {
  // The directory has one link for each thread besides its own two (proc(5)).
  struct stat st;
  if (sys::call(__NR_newfstatat, AT_FDCWD, "/proc/self/task", &st, 0) != 0) return -1;
  return static_cast<long>(st.st_nlink) - 2;
}

bool are_all_tasks(int pid, std::span<const int> tids) {
  if (count_tasks() != static_cast<long>(tids.size())) return false;
  // All of them are alive after the count: so the count had them, and no others.
  return std::all_of(tids.begin(), tids.end(),
                     [&](int tid) { return sys::call(__NR_tgkill, pid, tid, 0) == 0; });
}

bool read_task_facts(int tid, TaskFacts& facts) {
  char path[64], text[1024];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/stat", tid).out = '\0';
  if (read_small_file(path, text, sizeof(text)) <= 0) return false;
  std::string_view line(text);
  size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close + 2 >= line.size())
    return false;
  std::string_view name = line.substr(open + 1, close - open - 1);
  facts.name[name.copy(facts.name, sizeof(facts.name) - 1)] = '\0';
  facts.state = line[close + 2];
  // state is field 3; flags field 9.
  size_t at = close + 2;
  for (int field = 3; field < 9 && at != std::string_view::npos; ++field) {
    at = line.find(' ', at);
    if (at != std::string_view::npos) ++at;
  }
  unsigned long flags = 0;
  while (at != std::string_view::npos && at < line.size() && line[at] >= '0' && line[at] <= '9') {
    flags = flags * 10 + static_cast<unsigned long>(line[at++] - '0');
  }
  facts.kernel_worker = (flags & kWorkerFlags) != 0;
  facts.is_exiting = (flags & kExitingFlag) != 0;
  // exit_code is the last field.
  const size_t last = line.rfind(' ');
  for (size_t i = last + 1; i < line.size() && line[i] >= '0' && line[i] <= '9'; ++i)
    facts.wait_status = facts.wait_status * 10 + (line[i] - '0');
  return true;
}

int64_t processor_time_ns(int tid) {
  char path[64], text[128];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/schedstat", tid).out = '\0';
  if (read_small_file(path, text, sizeof(text)) <= 0) return -1;
  int64_t ns = 0;
  for (const char* p = text; *p >= '0' && *p <= '9'; ++p) ns = ns * 10 + (*p - '0');
  return ns;
}

bool read_signal_masks(int tid, SignalMasks& masks) {
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/status", tid).out = '\0';
  StatusField fields[] = {{"SigPnd:", 16}, {"ShdPnd:", 16}, {"SigBlk:", 16}};
  if (!read_status(path, fields)) return false;
  masks.thread = fields[0].value;
  masks.process = fields[1].value;
  masks.blocked = fields[2].value;
  return fields[2].found;
}

bool list_waiting(Arena& arena, ArenaVector<Addr>& stack_pointers, ArenaVector<int>& waiting) {
  ArenaVector<int> tids(arena);
  if (!list_tasks(tids)) return false;
  for (int tid : tids) {
    char path[64], text[256];
    *fmt::format_to(path, "/proc/self/task/{}/syscall", tid) = '\0';
    const long n = read_small_file(path, text, sizeof(text));
    if (n <= 0) continue;  // gone
    // "running", or "-1 SP PC" of a thread that waits in a fault.
    const bool faulting = text[0] == '-', in_call = text[0] >= '0' && text[0] <= '9';
    if (!faulting && !in_call) continue;
    if (in_call && !waiting.push_back(tid)) return false;
    // "NR ARGUMENTS SP PC", all but NR in hex.
    std::string_view line(text, static_cast<size_t>(n));
    const size_t last = line.rfind(' ');
    const size_t before = last == line.npos ? last : line.rfind(' ', last - 1);
    if (before == line.npos) continue;
    if (!stack_pointers.push_back(Addr{hex_after(line.substr(before, last - before), " 0x")})) return false;
  }
  std::sort(waiting.begin(), waiting.end());
  return true;
}

}  // namespace ckpt
