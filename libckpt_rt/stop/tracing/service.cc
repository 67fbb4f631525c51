// A service (service.h), by the agent.
#include "libckpt_rt/stop/tracing/service.h"

#include <errno.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <iterator>

#include "base/clock.h"
#include "base/files/directory_scan.h"
#include "base/files/task_text.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/stop/tracing/service_words.h"
#include "libckpt_rt/stop/tracing/tracee_steps.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::tracing {

namespace {

constexpr timespec kMoment{0, 2'000'000};

bool is_gone(int tid) { return sys::call(__NR_kill, tid, 0L) == -ESRCH; }

// Does `tid` trace it no more? Not known where /proc does not say: then it does.
bool is_let_go(const Tracee& t, int tid) {
  const ProcText status(tid, 0, "/status");
  if (status.text().empty()) return is_gone(tid);
  return static_cast<int>(status.number("\nTracerPid:\t", 10)) != t.tracer;
}

bool all_places_are_free() {
  return std::none_of(std::begin(places), std::end(places), [](const auto& place) {
    const uint64_t who = place.load(std::memory_order_seq_cst);
    return who != 0 && is_of_this_process(who);
  });
}

bool await_free_places(int64_t for_ns) {
  for (const int64_t until = now_ns() + for_ns; !all_places_are_free();) {
    if (now_ns() > until) return false;
    sys::call(__NR_nanosleep, &kMoment, nullptr);
  }
  return true;
}

// Is the thread in a wait(2) for any child, or for one that is traced? It would take stops from the thread
// that traces.
bool waits_for_tracees(int tid) {
  constexpr uint64_t kWait4 = __NR_wait4, kWaitid = __NR_waitid;
  const ProcText text(sys::getpid(), tid, "/syscall");  // "NUMBER 0x... 0x... ...", or "running"
  if (text.text().empty() || text.text()[0] < '0' || text.text()[0] > '9') return false;
  const uint64_t number = to_number(text.text(), 10);
  if (number != kWait4 && number != kWaitid) return false;
  uint64_t arguments[4] = {};
  size_t at = 0;
  for (uint64_t& a : arguments) {
    at = text.text().find(" 0x", at);
    if (at == std::string_view::npos) return false;
    at += 3;
    a = to_number(text.text().substr(at), 16);
  }
  const uint64_t options = number == kWait4 ? arguments[2] : arguments[3];
  if ((options & __WNOTHREAD) != 0) return false;
  const bool for_one = number == kWait4 ? static_cast<int>(arguments[0]) > 0 : arguments[0] == P_PID;
  if (!for_one) return true;
  const int pid = static_cast<int>(number == kWait4 ? arguments[0] : arguments[1]);
  const auto all = tracees();
  return std::any_of(all.begin(), all.end(), [pid](const Tracee& t) { return tid_of(t) == pid; });
}

Result<void> refuse_other_waits(const int* tracers, uint32_t count) {
  const ProcFile tasks(sys::getpid(), "/task");
  if (tasks.fd() < 0) return {};
  int other = 0;
  scan_directory(tasks.fd(), [&](std::string_view name) {
    if (other != 0 || name.empty() || name[0] < '0' || name[0] > '9') return;
    const int tid = static_cast<int>(to_number(name, 10));
    if (tid == sys::gettid() || std::find(tracers, tracers + count, tid) != tracers + count) return;
    if (waits_for_tracees(tid)) other = tid;
  });
  if (other == 0) return {};
  return make_error(ExitCode::kUnavailable, 0,
                    "thread {} of it waits (wait(2)) for processes that another of its threads traces "
                    "(ptrace), and would take the checkpoint's stops from it",
                    other);
}

}  // namespace

bool traces_anybody() {
  const int pid = sys::getpid();
  const auto all = tracees();
  return std::any_of(all.begin(), all.end(), [pid](const Tracee& t) {
    const int tid = tid_of(t);
    return tid > 0 && t.owner == pid && !is_let_go(t, tid);
  });
}

int left_out(bool in_job) {
  const int pid = this_process.pid;  // also in a child that writes the image
  const auto all = tracees();
  const auto joined = [&](const Tracee& t) {
    return std::any_of(all.begin(), all.end(), [&](const Tracee& other) {
      return tid_of(other) > 0 && other.owner == pid && other.process == t.process && other.joined;
    });
  };
  for (const Tracee& t : all) {
    const int tid = tid_of(t);
    if (tid > 0 && t.owner == pid && !is_let_go(t, tid) && !(in_job && joined(t))) return tid;
  }
  return 0;
}

void reset_after_restart() {
  asked_service.store(0, std::memory_order_relaxed);
  ready.store(0, std::memory_order_relaxed);
  for (auto& place : places) place.store(0, std::memory_order_relaxed);
}

Service::Service() : begun_(begun()) {}

Result<void> Service::begin(int64_t timeout_ns, int leader) {
  // Most stops last for a moment: their tracer sees to them when it is let go.
  constexpr int64_t kPatienceNs = 300'000'000, kSoonNs = 5'000'000'000;
  for (const int64_t began = now_ns();;) {
    CKPT_TRY(begin_once(timeout_ns, leader));
    Result<void> able = check();
    if (able.ok() || now_ns() - began > (is_over_soon(refusal().why) ? kSoonNs : kPatienceNs)) return able;
    end();
    sys::call(__NR_nanosleep, &kMoment, nullptr);
  }
}

Result<void> Service::check() const {
  if (is_over_) return {};
  if (begun() != begun_)
    return make_error(ExitCode::kUnavailable, 0,
                      "it has begun to trace (ptrace) another process meanwhile; ask again");
  const Refusal refused = refusal();
  if (!began_ || refused.why == nullptr) return {};
  return make_error(ExitCode::kUnavailable, 0, "process {}, which it traces (a debugger, strace), {}",
                    refused.tid, refused.why);
}

Result<void> Service::begin_once(int64_t timeout_ns, int leader) {
  begun_ = begun();
  is_over_ = false;
  if (has_overflown())
    return make_error(ExitCode::kUnavailable, 0, "it traces (ptrace) more threads than {}", kMostTracees);
  const int pid = sys::getpid();
  int tids[kMostTracers];
  uint32_t count = 0;
  for (Tracee& t : tracees()) {
    const int tid = tid_of(t);
    if (tid <= 0 || t.owner != pid) continue;
    if (is_let_go(t, tid)) {
      forget(t);
      continue;
    }
    if (std::find(tids, tids + count, t.tracer) != tids + count) continue;
    if (count == std::size(tids))
      return make_error(ExitCode::kUnavailable, 0, "more than {} of its threads trace others", count);
    tids[count++] = t.tracer;
  }
  if (count == 0) return {};
  CKPT_TRY(refuse_other_waits(tids, count));
  if (!await_free_places(timeout_ns))
    return make_error(ExitCode::kTimeout, 0,
                      "a thread of it that traces another process is not through with the checkpoint before");
  forget_refusal();
  began_ = true;
  ready.store(0, std::memory_order_relaxed);
  leading_process.store(leader, std::memory_order_relaxed);
  static constinit uint32_t number = 0;  // the agent's; there is one at a time
  asked_service.store(of_this_process(++number), std::memory_order_seq_cst);
  for (uint32_t i = 0; i < count; ++i) sys::call(__NR_tgkill, pid, tids[i], own_signal.number);
  for (const int64_t until = now_ns() + timeout_ns; ready.load(std::memory_order_acquire) < count;) {
    if (now_ns() > until)
      return make_error(ExitCode::kTimeout, 0,
                        "a thread of it that traces another process did not stop in time");
    futex_wait(ready, ready.load(std::memory_order_acquire), &kMoment);
  }
  return {};
}

void Service::let_go() {
  is_over_ = true;
  if (began_) asked_service.store(0, std::memory_order_seq_cst);
}

void Service::end() {
  constexpr int64_t kPatienceNs = 30'000'000'000;
  if (!began_) return;
  let_go();
  began_ = false;
  // A thread that is not through by then keeps its place: the next service waits for it, and says so.
  (void)await_free_places(kPatienceNs);
}

}  // namespace ckpt::tracing
