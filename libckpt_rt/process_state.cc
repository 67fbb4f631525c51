#include "libckpt_rt/process_state.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "libckpt_rt/task_list.h"

#ifndef MEMBARRIER_CMD_GET_REGISTRATIONS
#define MEMBARRIER_CMD_GET_REGISTRATIONS (1 << 9)
#endif
// linux/prctl.h of 6.15 and later: timer_create takes the id to use from *timerid.
#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS 77
#endif

namespace ckpt {

namespace {

// The text after "key" up to the end of its line.
std::string_view line_of(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  at += key.size();
  size_t end = text.find('\n', at);
  return text.substr(at, end == std::string_view::npos ? end : end - at);
}

// Numbers of a line in the given base, separated by anything else.
size_t numbers(std::string_view line, unsigned base, uint64_t* out, size_t max) {
  size_t count = 0;
  bool in_number = false, negative = false;
  for (char c : line) {
    unsigned digit = c >= '0' && c <= '9' ? static_cast<unsigned>(c - '0')
                     : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a' + 10) : 99u;
    if (digit < base) {
      if (!in_number) {
        if (count == max) return count;
        out[count++] = 0;
        in_number = true;
      }
      out[count - 1] = out[count - 1] * base + digit;
    } else {
      if (in_number && negative) out[count - 1] = -out[count - 1];
      in_number = false;
      negative = c == '-';
    }
  }
  if (in_number && negative) out[count - 1] = -out[count - 1];
  return count;
}

std::string_view read_link(Arena& arena, const char* path) {
  constexpr size_t kMost = 4096;
  auto* text = static_cast<char*>(arena.allocate(kMost + 1, 1));
  if (text == nullptr) return {};
  long n = sys::call(__NR_readlinkat, AT_FDCWD, path, text, kMost);
  if (n < 0) n = 0;
  text[n] = '\0';
  return {text, static_cast<size_t>(n)};
}

void read_stat_fields(std::string_view stat, MmRecord& mm) {
  size_t close = stat.rfind(')');
  if (close == std::string_view::npos) return;
  // Field 3 is the state; numbers() skips it, so index i is field i + 4 (proc(5)).
  uint64_t f[64] = {};
  size_t n = numbers(stat.substr(close + 3), 10, f, 64);
  if (n < 48) return;
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

}  // namespace

Result<void> read_process_facts(Arena& arena, int tid, ProcessFacts& facts) {
  constexpr size_t kText = 64 << 10;
  auto* text = static_cast<char*>(arena.allocate(kText));
  if (text == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process");
  ProcessRecord& p = facts.process;
  p.pid = sys::getpid();

  // Not our own thread's: its directory and umask are a copy from when it was started. Not
  // /proc/self either: that is the leader, which may have exited.
  char path[64];
  auto of_thread = [&](const char* name) {
    *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/{}", tid, name).out = '\0';
    return static_cast<const char*>(path);
  };
  long n = read_small_file(of_thread("status"), text, kText);
  if (n <= 0) return make_error(ExitCode::kSystem, static_cast<int>(n), "cannot read /proc/self/task/TID/status; mount /proc");
  std::string_view status(text, static_cast<size_t>(n));
  uint64_t v[64];
  if (numbers(line_of(status, "PPid:"), 10, v, 1) == 1) p.ppid = static_cast<int32_t>(v[0]);
  if (numbers(line_of(status, "Umask:"), 8, v, 1) == 1) p.umask = static_cast<uint32_t>(v[0]);
  if (numbers(line_of(status, "\nUid:"), 10, v, 4) == 4) {
    for (int i = 0; i < 4; ++i) p.uid[i] = static_cast<uint32_t>(v[i]);
  }
  if (numbers(line_of(status, "\nGid:"), 10, v, 4) == 4) {
    for (int i = 0; i < 4; ++i) p.gid[i] = static_cast<uint32_t>(v[i]);
  }
  if (numbers(line_of(status, "CapInh:"), 16, v, 1) == 1) p.cap_inheritable = v[0];
  if (numbers(line_of(status, "CapPrm:"), 16, v, 1) == 1) p.cap_permitted = v[0];
  if (numbers(line_of(status, "CapEff:"), 16, v, 1) == 1) p.cap_effective = v[0];
  if (numbers(line_of(status, "CapBnd:"), 16, v, 1) == 1) p.cap_bounding = v[0];
  if (numbers(line_of(status, "CapAmb:"), 16, v, 1) == 1) p.cap_ambient = v[0];
  constexpr size_t kMostGroups = 8192;  // the status text above holds no more
  auto* groups_read = static_cast<uint64_t*>(arena.allocate(kMostGroups * sizeof(uint64_t)));
  if (groups_read == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process");
  size_t groups = numbers(line_of(status, "Groups:"), 10, groups_read, kMostGroups);
  auto* group_ids = static_cast<uint32_t*>(arena.allocate(kMostGroups * sizeof(uint32_t)));
  if (group_ids == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process");
  for (size_t i = 0; i < groups; ++i) group_ids[i] = static_cast<uint32_t>(groups_read[i]);
  facts.groups = std::as_bytes(std::span(group_ids, groups));
  p.group_count = static_cast<uint32_t>(groups);

  p.pgid = static_cast<int32_t>(sys::call(__NR_getpgid, 0));
  p.sid = static_cast<int32_t>(sys::call(__NR_getsid, 0));
  p.personality = static_cast<uint32_t>(sys::call(__NR_personality, 0xffffffffL));
  p.dumpable = static_cast<int32_t>(sys::call(__NR_prctl, PR_GET_DUMPABLE));
  p.no_new_privs = static_cast<int32_t>(sys::call(__NR_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
  sys::call(__NR_prctl, PR_GET_CHILD_SUBREAPER, &p.child_subreaper);
  long thp = sys::call(__NR_prctl, PR_GET_THP_DISABLE, 0, 0, 0, 0);
  p.thp_disable = thp > 0 ? 1 : 0;
  p.xfeatures = read_xfeatures();

  n = read_small_file(of_thread("stat"), text, kText);
  if (n > 0) read_stat_fields({text, static_cast<size_t>(n)}, facts.mm);
  auto* auxv = static_cast<char*>(arena.allocate(4096));
  n = auxv == nullptr ? -ENOMEM : read_small_file(of_thread("auxv"), auxv, 4096);
  if (n > 0) facts.auxv = std::as_bytes(std::span(auxv, static_cast<size_t>(n)));

  facts.cwd = read_link(arena, of_thread("cwd"));
  facts.root = read_link(arena, of_thread("root"));
  facts.exe = read_link(arena, of_thread("exe"));
  auto* comm = static_cast<char*>(arena.allocate(32));
  n = comm == nullptr ? -ENOMEM : read_small_file("/proc/self/comm", comm, 32);
  if (n > 0) facts.comm = {comm, static_cast<size_t>(n) - 1};
  return {};
}

Result<void> prepare_process_state(Arena& arena, ProcessState& state) {
  state.timer_count = 0;
  constexpr size_t kText = 64 << 10;
  auto* text = static_cast<char*>(arena.allocate(kText));
  if (text == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the timers");
  long n = read_small_file("/proc/self/timers", text, kText);
  std::string_view all(text, n > 0 ? static_cast<size_t>(n) : 0);
  // ID: 1 / signal: 60/00007ffd / notify: signal/pid.2634 / ClockID: 1
  for (size_t at = 0; (at = all.find("ID: ", at)) != std::string_view::npos;) {
    if (at > 0 && all[at - 1] != '\n') {
      at += 4;
      continue;
    }
    size_t next = all.find("\nID: ", at);
    std::string_view one = all.substr(at, next == std::string_view::npos ? next : next + 1 - at);
    at += 4;
    if (state.timer_count == ProcessState::kMaxTimers) {
      return make_error(ExitCode::kUnsupported, 0, "the program has more than {} POSIX timers", ProcessState::kMaxTimers);
    }
    PosixTimerRecord& t = state.timers[state.timer_count];
    t = {};
    uint64_t v[2] = {};
    numbers(line_of(one, "ID: "), 10, v, 1);
    t.id = static_cast<int32_t>(v[0]);
    std::string_view signal = line_of(one, "signal: ");
    numbers(signal, 10, v, 1);
    t.signal = static_cast<int32_t>(v[0]);
    size_t slash = signal.find('/');
    if (slash != std::string_view::npos) {
      numbers(signal.substr(slash + 1), 16, v, 1);
      t.value = v[0];
    }
    std::string_view notify = line_of(one, "notify: ");
    if (notify.substr(0, 6) == "signal") t.notify = SIGEV_SIGNAL;
    else if (notify.substr(0, 4) == "none") t.notify = SIGEV_NONE;
    else t.notify = SIGEV_THREAD;
    size_t tid = notify.find("/tid.");
    if (tid != std::string_view::npos) {
      t.notify |= SIGEV_THREAD_ID;
      numbers(notify.substr(tid + 5), 10, v, 1);
      t.notify_tid = static_cast<int32_t>(v[0]);
    }
    numbers(line_of(one, "ClockID: "), 10, v, 1);
    t.clock = static_cast<int32_t>(v[0]);
    ++state.timer_count;
  }
  return {};
}

void capture_process_state_stopped(ProcessState& state) {
  for (int sig = 1; sig <= ProcessState::kSignals; ++sig) {
    sys::call(__NR_rt_sigaction, sig, 0L, &state.actions[sig - 1], 8L);
  }
  for (int which = 0; which < 3; ++which) {
    itimerval t{};
    sys::call(__NR_getitimer, which, &t);
    state.interval_timers.remaining_ns[which] = (t.it_value.tv_sec * 1'000'000L + t.it_value.tv_usec) * 1000;
    state.interval_timers.interval_ns[which] = (t.it_interval.tv_sec * 1'000'000L + t.it_interval.tv_usec) * 1000;
  }
  for (uint32_t i = 0; i < state.timer_count; ++i) {
    itimerspec t{};
    if (sys::call(__NR_timer_gettime, state.timers[i].id, &t) != 0) {
      state.timers[i].id = -1;  // deleted since prepare
      continue;
    }
    state.timers[i].remaining_ns = t.it_value.tv_sec * 1'000'000'000L + t.it_value.tv_nsec;
    state.timers[i].interval_ns = t.it_interval.tv_sec * 1'000'000'000L + t.it_interval.tv_nsec;
  }
  for (uint32_t i = 0; i < 16; ++i) {
    rlimit64 l{};
    if (sys::call(__NR_prlimit64, 0L, i, 0L, &l) == 0) {
      state.limits.soft[i] = l.rlim_cur;
      state.limits.hard[i] = l.rlim_max;
    }
  }
  long m = sys::call(__NR_membarrier, MEMBARRIER_CMD_GET_REGISTRATIONS, 0, 0);
  state.membarrier = m > 0 ? static_cast<uint32_t>(m) : 0;
  state.brk = static_cast<uint64_t>(sys::call(__NR_brk, 0L));
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
  for (uint32_t bit = 0; bit < 32; ++bit) {
    if ((state.membarrier & (1u << bit)) != 0) sys::call(__NR_membarrier, 1 << bit, 0, 0);
  }
  return 0;
}

long restore_timers(const ProcessState& state) {
  for (int which = 0; which < 3; ++which) {
    itimerval t{};
    int64_t us = state.interval_timers.remaining_ns[which] / 1000, step = state.interval_timers.interval_ns[which] / 1000;
    if (us == 0 && step == 0) continue;
    // An interval timer whose signal is still pending shows nothing remaining; it is not disarmed.
    if (us == 0) us = 1;
    t.it_value = {us / 1'000'000, us % 1'000'000};
    t.it_interval = {step / 1'000'000, step % 1'000'000};
    long r = sys::call(__NR_setitimer, which, &t, 0L);
    if (r != 0) return r;
  }
  const bool by_id = sys::call(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0) == 0;
  for (uint32_t i = 0; i < state.timer_count; ++i) {
    const PosixTimerRecord& t = state.timers[i];
    if (t.id < 0) continue;
    sigevent event{};
    event.sigev_notify = t.notify;
    event.sigev_signo = t.signal;
    event.sigev_value.sival_ptr = reinterpret_cast<void*>(t.value);
    event._sigev_un._tid = t.notify_tid;
    int id = t.id;
    long r = 0;
    // Without the newer prctl the kernel counts ids up: make timers until it reaches the one that the
    // program knows.
    for (;;) {
      r = sys::call(__NR_timer_create, t.clock, &event, &id);
      if (r != 0 || id == t.id || by_id) break;
      sys::call(__NR_timer_delete, id);
      if (id > t.id) return -EEXIST;
    }
    if (r != 0) return r;
    itimerspec when{};
    const int64_t remaining = t.remaining_ns == 0 && t.interval_ns != 0 ? 1 : t.remaining_ns;
    when.it_value = {remaining / 1'000'000'000, remaining % 1'000'000'000};
    when.it_interval = {t.interval_ns / 1'000'000'000, t.interval_ns % 1'000'000'000};
    r = sys::call(__NR_timer_settime, id, 0, &when, 0L);
    if (r != 0) return r;
  }
  if (by_id) sys::call(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0);
  return 0;
}

}  // namespace ckpt
