// A service (service.h), by the threads that trace: in the handler of the checkpoint signal, ahead of the
// stop and behind it.
#include <errno.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/clock.h"
#include "base/files/directory_scan.h"
#include "base/memory/large_table.h"
#include "base/memory/parents_memory.h"
#include "base/protocol/control_protocol.h"
#include "base/tracing/trace_calls.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/visit_stack.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/service_words.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/stop/tracing/tracee_calls.h"
#include "libckpt_rt/stop/tracing/tracee_steps.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::tracing {

constinit std::atomic<uint64_t> asked_service{0};
constinit std::atomic<int> leading_process{0};
constinit FutexWord ready{0};
constinit uint64_t served_by[kMostTracers] = {};
constinit std::atomic<uint64_t> places[kMostTracers] = {};

namespace {

constexpr size_t kStackBytes = 32 << 10;
CKPT_LARGE_TABLE alignas(16) constinit std::byte stacks[kMostTracers][kStackBytes]{};
constexpr int64_t kNapNs = 200'000;

bool is_gone(int tid) { return sys::call(__NR_kill, tid, 0L) == -ESRCH; }

// Threads of its process that the kernel has attached, and of which the program knows nothing yet.
void find_more(int process) {
  const int self = sys::gettid();
  const ProcFile tasks(process, "/task");
  if (tasks.fd() < 0) return;
  scan_directory(tasks.fd(), [&](std::string_view name) {
    if (name.empty() || name[0] < '0' || name[0] > '9') return;
    const int tid = static_cast<int>(to_number(name, 10));
    bool known = false;
    for_each_own([&](const Tracee& t) { known = known || tid_of(t) == tid; });
    if (!known && static_cast<int>(ProcText(tid, 0, "/status").number("\nTracerPid:\t", 10)) == self)
      note_found(tid);
  });
}

// The checkpoint's signal in a process (control_protocol.h). caught: its SigCgt.
int signal_in(int process, uint64_t caught) {
  const int usual = own_signal.sign.size() == 0 ? own_signal.number : user_settings().signal;
  const ProcFile maps(process, "/maps");
  char text[2048];
  constexpr size_t kLongest = kMovedSignalName.size() + 3;  // with its digits
  for (size_t have = 0; maps.fd() >= 0;) {
    const long n = sys::call(__NR_read, maps.fd(), text + have, sizeof(text) - have);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
    const std::string_view read(text, have);
    if (const size_t at = read.find(kMovedSignalName); at != read.npos && have - at >= kLongest) {
      const int moved = static_cast<int>(to_number(read.substr(at + kMovedSignalName.size()), 10));
      return moved >= 1 && moved <= 64 && (caught & trace::bit_of(moved)) != 0 ? moved : usual;
    }
    const size_t tail = have < kLongest ? have : kLongest;
    std::memmove(text, text + have - tail, tail);
    have = tail;
  }
  return usual;
}

void begin_own(Tracee& t, int leader) {
  const int tid = tid_of(t);
  t.stands = t.joined = false;
  const ProcText status(tid, 0, "/status");
  if (status.text().empty()) {
    if (is_gone(tid)) return forget(t);
    t.state = State::kNone;
    return refuse(t, "cannot be looked at in /proc (no descriptor is left)");
  }
  if (static_cast<int>(status.number("\nTracerPid:\t", 10)) != sys::gettid()) return forget(t);
  t.process = static_cast<int>(status.number("\nTgid:\t", 10));
  t.joined = t.process == leader;
  // The first thread of its process has ended: wait(2) tells of it when the last one has.
  if (status.state() == 'Z') {
    t.state = State::kNone;
    if (is_end(untold_event(tid))) note_end(t);
    return;
  }
  t.signal = signal_in(t.process, status.number("\nSigCgt:\t", 16));
  if (t.signal != own_signal.number) look_at_all_stops();
  t.asked = t.asked && (status.number("\nSigPnd:\t", 16) & trace::bit_of(signal_of(t))) != 0;
  // A marker is awaited of a signal that wait(2) has passed on.
  if (t.state != State::kInHandler) {
    t.was_held = t.in_call = t.interrupted = false;
    t.stop_came = 0;
    t.state = State::kRunning;
  }
  if (t.process == tid &&
      has_parents_memory(tid, static_cast<int>(status.number("\nPPid:\t", 10)), [] { return false; }))
    return refuse(t, kInVfork);
  if ((t.options & PTRACE_O_TRACESECCOMP) != 0)
    return refuse(t, "has a filter of system calls of which its tracer is told (PTRACE_O_TRACESECCOMP)");
  if (t.unknown != Tracee::Unknown::kNothing)
    return refuse(t,
                  "has options (PTRACE_SETOPTIONS), and was attached, in a way that is not known: its tracer "
                  "has executed another program since, or has let go of the thread that made it");
  look(t);
  if (t.state != State::kRunning) return;
  if (t.resumed_by == PTRACE_LISTEN)
    return refuse(t, "is in the stop of its group (SIGSTOP, a terminal's stop)");
  if (status.state() == 'S' && (status.number("\nSigBlk:\t", 16) & trace::bit_of(signal_of(t))) != 0)
    refuse(t, "blocks the checkpoint's signal, as libc's thread for timers does (SIGEV_THREAD)");
}

// Have all that are to stand been given their signal?
bool all_stand() {
  bool all = true;
  for_each_own([&](Tracee& t) {
    if (!all || t.state == State::kNone || t.stands) return;
    if (ProcText(tid_of(t), 0, "/status").state() == 'Z') {
      t.state = State::kNone;
      if (is_end(untold_event(tid_of(t)))) note_end(t);
      return;
    }
    // A process that was not asked takes no part. Where another of its threads was, which nobody traces, its
    // agent shows that.
    bool joined = t.joined;
    for_each_own(
        [&](const Tracee& other) { joined = joined || (other.process == t.process && other.joined); });
    t.joined = joined || has_agent(t.process);
    all = !t.joined;
  });
  return all;
}

struct Served {
  uint64_t service;
  bool stands_again = false;
};

void serve(void* argument) {
  const auto& served = *static_cast<Served*>(argument);
  // relaxed: written before the service that was found.
  const int leader = leading_process.load(std::memory_order_relaxed);
  for_each_own([](const Tracee& t) {
    find_more(static_cast<int>(ProcText(tid_of(t), 0, "/status").number("\nTgid:\t", 10)));
  });
  for_each_own([](const Tracee& t) { note_children_of(tid_of(t)); });
  for_each_own([leader](Tracee& t) { begin_own(t, leader); });
  ready.fetch_add(1, std::memory_order_release);
  futex_wake(ready);
  // When the stop is asked for, all that take part have joined; whoever is to stand has its signal soon.
  // Where one cannot, this thread does, so that its agent comes to say so.
  while (asked_service.load(std::memory_order_acquire) == served.service &&
         !(stop_state.world.requested() && (all_stand() || refusal().why != nullptr))) {
    if (!step()) nap(kNapNs);
  }
}

// Those that are on their way through our handler come out of it first. In mode sequential a process stands
// until all of it is copied.
void put_all_back(void* argument) {
  auto& served = *static_cast<Served*>(argument);
  constexpr int64_t kPatienceNs = 10'000'000'000, kLongestNs = 600'000'000'000, kSoonNs = 1'000'000'000;
  int64_t over_ns = 0, until = 0;
  for (;;) {
    const bool over = asked_service.load(std::memory_order_acquire) != served.service;
    if (!over && stop_state.world.requested() && all_stand()) {
      served.stands_again = true;  // another try of this stop
      return;
    }
    const int64_t now = now_ns();
    if (over && over_ns == 0) {
      over_ns = now, until = now + kPatienceNs;
      step();  // a stop that another thread has seen while the service was on (is_of_service)
    }
    if (over && !any_on_its_way()) break;
    if (over && now > until) {
      const Tracee* late = nullptr;
      for_each_own([&](const Tracee& t) {
        if (is_on_its_way(t)) late = &t;
      });
      if (now - over_ns < kLongestNs && has_agent(late->process)) {
        until = now + kSoonNs;
        continue;
      }
      statistics::set_last_error(
          make_error(ExitCode::kTimeout, 0,
                     "thread {} of process {}, which this one traces (ptrace), has not come back from the "
                     "checkpoint's signal yet",
                     tid_of(*late), late->process));
      break;
    }
    if (!step()) nap(over && now - over_ns > kSoonNs ? 10 * kNapNs : kNapNs);
  }
  for_each_own([](Tracee& t) {
    t.stands = false;
    if (t.state == State::kRunning) give_back(t);
  });
}

}  // namespace

bool has_agent(int process) {
  const ProcFile tasks(process, "/task");
  bool found = false;
  if (tasks.fd() < 0) return false;
  scan_directory(tasks.fd(), [&](std::string_view name) {
    if (found || name.empty() || name[0] < '0' || name[0] > '9') return;
    found = ProcText(process, static_cast<int>(to_number(name, 10)), "/comm").text() == "ckpt_rt\n";
  });
  return found;
}

bool any_on_its_way() {
  bool any = false;
  for_each_own([&](const Tracee& t) { any = any || is_on_its_way(t); });
  return any;
}

bool step() {
  bool any = false;
  for_each_own([&](Tracee& t) {
    if (t.state != State::kNone) any = look(t) || let_come(t) || any;
  });
  return any;
}

void nap(int64_t ns) {
  const timespec time{0, ns};
  sys::call(__NR_nanosleep, &time, nullptr);
}

void on_stack_of(int place, void (*work)(void*), void* argument) {
  ckpt_visit_stack(stacks[place] + kStackBytes, work, argument);
}

// Never more trace than there are places: begin_once() refuses that.
int take_place() {
  bool traces = false;
  for_each_own([&](const Tracee&) { traces = true; });
  if (!traces) return -1;
  const uint64_t self = of_this_process(static_cast<uint64_t>(sys::gettid()));
  for (size_t i = 0; i < kMostTracers; ++i) {
    uint64_t who = places[i].load(std::memory_order_relaxed);
    // A fork copies places of its parent's threads. A thread of ours that has one leaves it.
    if (who != 0 && is_of_this_process(who)) continue;
    if (places[i].compare_exchange_strong(who, self, std::memory_order_seq_cst)) return static_cast<int>(i);
  }
  return -1;
}

void leave_place(int place) { places[place].store(0, std::memory_order_release); }

bool serves(int tid) {
  const uint64_t who = of_this_process(static_cast<uint64_t>(tid));
  return std::any_of(std::begin(places), std::end(places),
                     [who](const auto& place) { return place.load(std::memory_order_acquire) == who; });
}

bool is_of_service(const Tracee& t, int signal) {
  // The thread that traces it writes that meanwhile; what is not ours yet or no longer is told.
  const State state = std::atomic_ref(const_cast<State&>(t.state)).load(std::memory_order_acquire);
  const bool own = signal == signal_of(t);
  if (state == State::kRunning) return own && is_of_this_process(asked_service.load());
  if (state != State::kInHandler && state != State::kDelivering) return false;
  if (t.attaches) return signal == SIGSTOP && serves(t.tracer);
  // Of the stop that wait(2) had not told, its own signal tells.
  if (t.was_held && !t.reported && t.stop == Tracee::Stop::kSignal && signal == t.info.si_signo) return false;
  return serves(t.tracer) && (own || traced::may_be_marker(signal & ~0x80));
}

int join_service(uint64_t service) {
  if (!is_of_this_process(service)) return kServesNobody;
  const int place = take_place();
  if (place < 0) return kServesNobody;
  if (asked_service.load(std::memory_order_seq_cst) != service) {
    leave_place(place);
    return kServesNobody;
  }
  served_by[place] = service;
  Served served{service};
  on_stack_of(place, &serve, &served);
  return place;
}

void let_stand() {
  for_each_own([](Tracee& t) {
    siginfo_t info{};
    if (t.state == State::kNone || !t.stands || !read_info(tid_of(t), info) || info.si_signo != SIGSTOP)
      return;
    t.stopped_late = true;
    take_event(tid_of(t));
    trace::resume(PTRACE_CONT, tid_of(t), 0);
  });
}

bool after_stop(int place) {
  for_each_own([](Tracee& t) {
    if (t.stopped_late) t.stop_came = SIGSTOP;
    t.stopped_late = false;
  });
  Served served{served_by[place]};
  on_stack_of(place, &put_all_back, &served);
  if (served.stands_again) return true;
  leave_place(place);
  return false;
}

}  // namespace ckpt::tracing
