#include "libckpt_rt/capture/process/process_state.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/machine/cpu_features.h"
#include "base/memory/fork_path.h"
#include "base/memory/large_table.h"
#include "base/protocol/restart_protocol.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/process/children.h"
#include "libckpt_rt/capture/process/descriptor_table.h"
#include "libckpt_rt/capture/process/membarrier.h"
#include "libckpt_rt/core/kernel/long_path.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/threads/processor_time.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

CKPT_LARGE_TABLE constinit ProcessState saved_process{};

namespace {

std::string_view read_link(Arena& arena, const char* path) {
  constexpr size_t kMost = 4096;
  auto* text = static_cast<char*>(arena.allocate(kMost + 1, 1));
  if (text == nullptr) return {};
  long n = sys::call(__NR_readlinkat, AT_FDCWD, path, text, kMost);
  if (n < 0) n = 0;
  text[n] = '\0';
  return {text, static_cast<size_t>(n)};
}

void read_stat_fields(std::string_view stat, ProcessFacts& facts) {
  MmRecord& mm = facts.mm;
  ProcessRecord& p = facts.process;
  size_t close = stat.rfind(')');
  if (close == std::string_view::npos) return;
  // Field 3 is the state; numbers() skips it, so index i is field i + 4 (proc(5)).
  uint64_t f[64] = {};
  size_t n = numbers(stat.substr(close + 3), 10, f, 64);
  if (n < 48) return;
  // The calls may be forbidden to the program (seccomp): its filters apply to us.
  if (p.pgid <= 0) p.pgid = static_cast<int32_t>(f[5 - 4]);
  if (p.sid <= 0) p.sid = static_cast<int32_t>(f[6 - 4]);
  mm.start_code = f[26 - 4];
  mm.end_code = f[27 - 4];
  mm.start_stack = f[28 - 4];
  mm.start_data = f[45 - 4];
  mm.end_data = f[46 - 4];
  mm.start_brk = f[47 - 4];
  mm.arg_start = f[48 - 4];
  mm.arg_end = f[49 - 4];
  mm.env_start = f[50 - 4];
  mm.env_end = f[51 - 4];
}

// No call tells whether mlockall(MCL_FUTURE) is on. A new mapping shows it: locked memory cannot be given
// back (MADV_DONTNEED), and is there at once unless it is locked on fault.
int future_locks() {
  // Not map_own(): it is gone before a thread of the program can miss its place, and where others map memory
  // the kernel has tables for it.
  const long page =
      sys::call(__NR_mmap, 0L, kPageSize, long{PROT_READ}, long{MAP_PRIVATE | MAP_ANONYMOUS}, -1L, 0L);
  if (page == -EAGAIN) return MCL_FUTURE;  // as much is locked as may be
  if (sys::failed(page)) return 0;
  int locks = 0;
  if (sys::call(__NR_madvise, page, kPageSize, long{MADV_DONTNEED}) == -EINVAL) {
    unsigned char there = 0;
    sys::call(__NR_mincore, page, kPageSize, &there);
    locks = (there & 1) != 0 ? MCL_FUTURE : MCL_FUTURE | MCL_ONFAULT;
  }
  sys::call(__NR_munmap, page, kPageSize);
  return locks;
}

// linux/prctl.h of 6.3 and 6.4.
constexpr int kSetMdwe = 65, kGetMdwe = 66, kSetMemoryMerge = 67, kGetMemoryMerge = 68;

constexpr char kOomScoreFile[] = "/proc/self/oom_score_adj", kCoreFilterFile[] = "/proc/self/coredump_filter";

const char* path_of(ProcessTexts::Text which, int tid, char (&path)[64]) {
  constexpr const char* kOfThread[] = {"status", "stat", "auxv"};
  if (which == ProcessTexts::kOomScore) return kOomScoreFile;
  if (which == ProcessTexts::kCoreFilter) return kCoreFilterFile;
  if (which == ProcessTexts::kComm) return "/proc/self/comm";
  if (which == ProcessTexts::kTimers) return "/proc/self/timers";
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/{}", tid, kOfThread[which]).out = '\0';
  return path;
}

template <size_t kSize>
void read_line(const char* path, char (&line)[kSize]) {
  const long n = read_small_file(path, line, kSize);
  line[n > 0 ? n : 0] = '\0';
}

// False: it is not what it was, and cannot be.
bool write_line(const char* path, const char* line, const char* prefix) {
  char now[16], text[32];
  read_line(path, now);
  if (line[0] == '\0' || std::string_view(now) == line) return true;
  ScopedFd file(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0)));
  if (!file.valid()) return false;
  const size_t length =
      static_cast<size_t>(fmt::format_to_n(text, sizeof(text), "{}{}", prefix, line).out - text);
  return sys::call(__NR_write, file.get(), text, length) == static_cast<long>(length);
}

constexpr char kAutogroupFile[] = "/proc/self/autogroup";

bool is_session_leader() { return sys::call(__NR_getsid, 0L) == sys::getpid(); }

// "/autogroup-123 nice -5"
int session_nice() {
  char line[64];
  const long n = is_session_leader() ? read_small_file(kAutogroupFile, line, sizeof(line)) : 0;
  std::string_view text(line, n > 0 ? static_cast<size_t>(n) : 0);
  const size_t at = text.find(" nice ");
  if (at == text.npos) return 0;
  text.remove_prefix(at + sizeof(" nice ") - 1);
  uint64_t value = 0;
  if (numbers(text, 10, &value, 1) != 1) return 0;
  return text.starts_with('-') ? -static_cast<int>(value) : static_cast<int>(value);
}

// The kernel takes such a number from a user ten times a second at most, from all users together.
bool set_session_nice(int nice) {
  constexpr timespec kWhile{0, 20'000'000};
  constexpr int kTries = 100;
  if (session_nice() == nice || !is_session_leader()) return true;
  ScopedFd file(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, kAutogroupFile, O_WRONLY | O_CLOEXEC, 0)));
  if (!file.valid()) return false;
  char text[16];
  const auto length = static_cast<long>(fmt::format_to_n(text, sizeof(text), "{}", nice).out - text);
  long r = -EAGAIN;
  for (int i = 0; i < kTries && r == -EAGAIN; ++i) {
    if (i != 0) sys::call(__NR_nanosleep, &kWhile, nullptr);
    r = sys::call(__NR_write, file.get(), text, length);
  }
  return r == length;
}

constexpr uint32_t kUncountedFilters = 1;  // before Linux 5.9 the number is not told

uint32_t seccomp_filters_in(std::string_view status) {
  uint64_t mode = 0, filters = 0;
  if (numbers(line_of(status, "\nSeccomp:"), 10, &mode, 1) != 1 || mode == 0) return 0;
  return numbers(line_of(status, "\nSeccomp_filters:"), 10, &filters, 1) == 1 ? static_cast<uint32_t>(filters)
                                                                              : kUncountedFilters;
}

}  // namespace

CKPT_START_PATH uint32_t count_seccomp_filters() {
  if (sys::call(__NR_prctl, PR_GET_SECCOMP, 0L, 0L, 0L, 0L) == 0) return 0;
  StatusField fields[] = {{"Seccomp:"}, {"Seccomp_filters:"}};
  if (!read_status("/proc/thread-self/status", fields) || fields[0].value == 0) return 0;
  return fields[1].found ? static_cast<uint32_t>(fields[1].value) : kUncountedFilters;
}

bool is_filtered() {
  StatusField mode[] = {{"Seccomp:"}};
  return !read_status("/proc/thread-self/status", mode) || !mode[0].found || mode[0].value != 0;
}

void ProcessTexts::open() {
  filtered_ = is_filtered();
  constexpr uint64_t kPlenty = 64;
  rlimit64 limit{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &limit) != 0 || limit.rlim_cur < kPlenty) return;
  for (int i = 0; i < kTexts; ++i) {
    char path[64];
    files_[i] = ScopedFd(static_cast<int>(sys::call(
        __NR_openat, AT_FDCWD, path_of(static_cast<Text>(i), sys::getpid(), path), O_RDONLY | O_CLOEXEC, 0)));
  }
}

long ProcessTexts::read(Text which, int tid, bool leader_exited, char* buffer, size_t size) const {
  const bool of_process = which >= kComm;
  if (files_[which].valid() && (of_process || !leader_exited))
    return read_small_file(files_[which].get(), buffer, size);
  char path[64];
  return read_small_file(path_of(which, tid, path), buffer, size);
}

namespace {

bool was_continued(int kind, int pid) {
  siginfo_t info{};
  return sys::call(__NR_waitid, kind, pid, &info, WCONTINUED | WNOHANG | WNOWAIT, 0L) == 0 &&
         info.si_pid != 0;
}

// Each thread has one. That of the first: ours has what the thread had that it began from, when it began.
uint32_t personality() {
  char line[32];
  uint64_t v[1];
  const long n = read_small_file("/proc/self/personality", line, sizeof(line));
  if (n > 0 && numbers({line, static_cast<size_t>(n)}, 16, v, 1) == 1) return static_cast<uint32_t>(v[0]);
  // The file may not be there to be read, and the call be forbidden to the program (seccomp).
  const long r = sys::call(__NR_personality, 0xffffffffL);
  return sys::failed(r) ? 0 : static_cast<uint32_t>(r);
}

void read_status_fields(std::string_view status, ProcessRecord& p) {
  uint64_t v[64];
  if (numbers(line_of(status, "\nPPid:"), 10, v, 1) == 1) p.ppid = static_cast<int32_t>(v[0]);
  if (numbers(line_of(status, "\nUmask:"), 8, v, 1) == 1) p.umask = static_cast<uint32_t>(v[0]);
  if (numbers(line_of(status, "\nUid:"), 10, v, 4) == 4) {
    for (int i = 0; i < 4; ++i) p.uid[i] = static_cast<uint32_t>(v[i]);
  }
  if (numbers(line_of(status, "\nGid:"), 10, v, 4) == 4) {
    for (int i = 0; i < 4; ++i) p.gid[i] = static_cast<uint32_t>(v[i]);
  }
  if (numbers(line_of(status, "\nCapInh:"), 16, v, 1) == 1) p.cap_inheritable = v[0];
  if (numbers(line_of(status, "\nCapPrm:"), 16, v, 1) == 1) p.cap_permitted = v[0];
  if (numbers(line_of(status, "\nCapEff:"), 16, v, 1) == 1) p.cap_effective = v[0];
  if (numbers(line_of(status, "\nCapBnd:"), 16, v, 1) == 1) p.cap_bounding = v[0];
  if (numbers(line_of(status, "\nCapAmb:"), 16, v, 1) == 1) p.cap_ambient = v[0];
}

Result<void> read_groups(Arena& arena, std::string_view status, ProcessFacts& facts) {
  // More are left out, and so are those beyond the end of the text above.
  constexpr size_t kMostGroups = 8192;
  auto* groups_read = static_cast<uint64_t*>(arena.allocate(kMostGroups * sizeof(uint64_t)));
  if (groups_read == nullptr)
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process");
  size_t groups = numbers(line_of(status, "\nGroups:"), 10, groups_read, kMostGroups);
  auto* group_ids = static_cast<uint32_t*>(arena.allocate(kMostGroups * sizeof(uint32_t)));
  if (group_ids == nullptr)
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process");
  for (size_t i = 0; i < groups; ++i) group_ids[i] = static_cast<uint32_t>(groups_read[i]);
  facts.groups = std::as_bytes(std::span(group_ids, groups));
  facts.process.group_count = static_cast<uint32_t>(groups);
  return {};
}

// What the kernel says of the process to any of its threads.
void read_own_settings(ProcessRecord& p) {
  p.pgid = static_cast<int32_t>(sys::call(__NR_getpgid, 0));
  p.sid = static_cast<int32_t>(sys::call(__NR_getsid, 0));
  p.personality = personality();
  p.dumpable = static_cast<int32_t>(sys::call(__NR_prctl, PR_GET_DUMPABLE));
  p.no_new_privs = static_cast<int32_t>(sys::call(__NR_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
  sys::call(__NR_prctl, PR_GET_CHILD_SUBREAPER, &p.child_subreaper);
  long thp = sys::call(__NR_prctl, PR_GET_THP_DISABLE, 0, 0, 0, 0);
  p.thp_disable = thp > 0 ? 1 : 0;
  p.xfeatures = read_xfeatures();
}

}  // namespace

Result<void> read_process_facts(Arena& arena, const ProcessTexts& texts, int tid, bool leader_exited,
                                ProcessFacts& facts) {
  constexpr size_t kText = 64 << 10;
  auto* text = static_cast<char*>(arena.allocate(kText));
  if (text == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process");
  ProcessRecord& p = facts.process;
  p.pid = sys::getpid();

  // Not our own thread's: its directory and umask are a copy from when it was started.
  char path[64];
  auto of_thread = [&](const char* name) {
    *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/{}", tid, name).out = '\0';
    return static_cast<const char*>(path);
  };
  long n = texts.read(ProcessTexts::kStatus, tid, leader_exited, text, kText);
  if (n <= 0)
    return make_error(ExitCode::kSystem, static_cast<int>(n),
                      "cannot read /proc/self/task/TID/status; mount /proc");
  // Keys begin a line: the first line is the thread's name, which may be "Umask:0".
  std::string_view status(text, static_cast<size_t>(n));
  read_status_fields(status, p);
  facts.seccomp_filters = seccomp_filters_in(status);
  CKPT_TRY(read_groups(arena, status, facts));

  // Not what waits for __WCLONE: the command of CKPT_TO (image_command.cc).
  facts.has_children = sys::call(__NR_waitid, P_ALL, 0L, 0L,
                                 WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT, 0L) != -ECHILD;

  if (facts.has_children && was_continued(P_ALL, 0)) {
    for (const LostChild& child : list_children(arena)) {
      if (!was_continued(P_PID, child.record.pid)) continue;
      ContinuedChildren& all = facts.continued;
      if (all.count < ContinuedChildren::kMost) all.pids[all.count] = child.record.pid;
      ++all.count;
    }
  }

  read_own_settings(p);

  n = texts.read(ProcessTexts::kStat, tid, leader_exited, text, kText);
  if (n > 0) read_stat_fields({text, static_cast<size_t>(n)}, facts);
  auto* auxv = static_cast<char*>(arena.allocate(4096));
  n = auxv == nullptr ? -ENOMEM : texts.read(ProcessTexts::kAuxv, tid, leader_exited, auxv, 4096);
  if (n > 0) facts.auxv = std::as_bytes(std::span(auxv, static_cast<size_t>(n)));

  facts.cwd = read_link(arena, of_thread("cwd"));
  if (facts.cwd.empty()) {
    auto found = long_path_of(arena, of_thread("cwd"));
    if (!found.ok()) return found.error();
    facts.cwd = *found;
  }
  facts.root = read_link(arena, of_thread("root"));
  facts.exe = read_link(arena, of_thread("exe"));
  auto* comm = static_cast<char*>(arena.allocate(32));
  n = comm == nullptr ? -ENOMEM : texts.read(ProcessTexts::kComm, tid, leader_exited, comm, 32);
  if (n > 0) facts.comm = {comm, static_cast<size_t>(n) - 1};
  return {};
}

namespace {

int ask(int operation) {
  const long r = sys::call(__NR_prctl, long{operation}, 0L, 0L, 0L, 0L);
  return r < 0 ? -1 : static_cast<int>(r);
}

// "Max open files  1024  4096  files": a line for each, in the order of their numbers, behind a heading. The
// columns begin at the same places in all (proc(5)).
void read_limits_in(std::string_view text, ResourceLimitsRecord& limits) {
  constexpr size_t kSoft = 26, kHard = 47, kWidth = 20;
  auto number = [](std::string_view line, size_t at) {
    uint64_t v[1] = {RLIM64_INFINITY};
    if (at < line.size()) numbers(line.substr(at, kWidth), 10, v, 1);
    return v[0];
  };
  for (uint32_t i = 0; i < 16; ++i) {
    const size_t end = text.find('\n');
    if (end == text.npos) return;
    text.remove_prefix(end + 1);
    const std::string_view line = text.substr(0, text.find('\n'));
    limits.soft[i] = number(line, kSoft);
    limits.hard[i] = number(line, kHard);
  }
}

void read_limits(ResourceLimitsRecord& limits) {
  for (uint32_t i = 0; i < 16; ++i) {
    rlimit64 l{};
    if (sys::call(__NR_prlimit64, 0L, i, 0L, &l) != 0) {
      // The call may be forbidden to the program (seccomp).
      char text[2048];
      const long n = read_small_file("/proc/self/limits", text, sizeof(text));
      if (n > 0) read_limits_in({text, static_cast<size_t>(n)}, limits);
      return;
    }
    limits.soft[i] = l.rlim_cur;
    limits.hard[i] = l.rlim_max;
  }
}

}  // namespace

void capture_shared_state_stopped(bool filtered, ProcessState& state) {
  for (int sig = 1; sig <= ProcessState::kSignals; ++sig) {
    sys::call(__NR_rt_sigaction, sig, 0L, &state.actions[sig - 1], 8L);
  }
  read_limits(state.limits);
  state.membarrier = membarrier_registrations();
  descriptor_table::note_stopped(filtered);
  state.brk = static_cast<uint64_t>(sys::call(__NR_brk, 0L));
  state.dumpable = ask(PR_GET_DUMPABLE);
  state.memory_merge = ask(kGetMemoryMerge);
  state.child_subreaper = 0;
  sys::call(__NR_prctl, PR_GET_CHILD_SUBREAPER, &state.child_subreaper);
  state.thp_disable = ask(PR_GET_THP_DISABLE);
  state.no_new_code = ask(kGetMdwe);
}

void capture_process_state_stopped(const ProcessTexts& texts, ProcessState& state) {
  auto line = [&]<size_t kSize>(ProcessTexts::Text which, char(&to)[kSize]) {
    const long n = texts.read(which, 0, false, to, kSize);
    to[n > 0 ? n : 0] = '\0';
  };
  state.future_locks = future_locks();
  line(ProcessTexts::kOomScore, state.oom_score_adj);
  line(ProcessTexts::kCoreFilter, state.core_filter);
  state.session_nice = session_nice();
  state.secure_bits = ask(PR_GET_SECUREBITS);
  processor_time::note_process();
  state.realtime_ns = now_ns(CLOCK_REALTIME);
  state.monotonic_ns = now_ns(CLOCK_MONOTONIC);
  state.boottime_ns = now_ns(CLOCK_BOOTTIME);
}

long restore_signal_actions(const ProcessState& state) {
  for (int sig = 1; sig <= ProcessState::kSignals; ++sig) {
    if (sig == SIGKILL || sig == SIGSTOP) continue;
    long r = sys::call(__NR_rt_sigaction, sig, &state.actions[sig - 1], 0L, 8L);
    if (r != 0) return r;
  }
  register_for_membarrier(state.membarrier);
  return 0;
}

uint32_t restore_process_settings(const ProcessState& state) {
  uint32_t notes = 0;
  if (state.future_locks != 0 && sys::call(__NR_mlockall, long{state.future_locks}) != 0)
    notes |= kNoteFutureLocks;
  notes |= descriptor_table::restore();
  if (!write_line(kOomScoreFile, state.oom_score_adj, "")) notes |= kNoteOomScore;
  if (!set_session_nice(state.session_nice)) notes |= kNoteScheduling;
  write_line(kCoreFilterFile, state.core_filter, "0x");  // it needs no right
  if (state.memory_merge > 0) sys::call(__NR_prctl, long{kSetMemoryMerge}, 1L, 0L, 0L, 0L);
  if (state.no_new_code > 0) sys::call(__NR_prctl, long{kSetMdwe}, long{state.no_new_code}, 0L, 0L, 0L);
  return notes;
}

}  // namespace ckpt
