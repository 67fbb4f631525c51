#include "libckpt_rt/stop/tracing/tracee_table.h"

#include <errno.h>
#include <linux/ptrace.h>

#include <algorithm>
#include <string_view>

#include "base/files/task_text.h"
#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::tracing {

namespace {

CKPT_LARGE_TABLE constinit Tracee table[kMostTracees];
constinit std::atomic<int> overflown{0};  // the process that had too many
constinit std::atomic<int> last_owner{0};
constinit std::atomic<uint32_t> begun_so_far{0};
constinit std::atomic<int> last_seizer{0};  // or it may have seized one

Tracee* find(int tid, int tracer, int owner) {
  for (Tracee& t : table) {
    // relaxed: an entry of this thread's was written by this thread.
    if (t.tid.load(std::memory_order_relaxed) == tid && t.tracer == tracer && t.owner == owner) return &t;
  }
  return nullptr;
}

using Unknown = Tracee::Unknown;

struct Origin {
  uint32_t options = 0;
  bool seized = false;
  Unknown unknown = Unknown::kNothing;
  bool operator==(const Origin&) const = default;
};
Origin like(const Tracee& t) { return {t.options, t.seized, t.unknown}; }
constexpr Origin kInherited{0, false, Unknown::kSeized};

void note_seizer(int owner) { last_seizer.store(owner, std::memory_order_relaxed); }

// One that the kernel has attached for this process. Where that has seized none since it runs its program, no
// more is unknown than the options.
Origin unknown_origin(int owner) {
  const bool attached_none_yet = last_owner.load(std::memory_order_relaxed) != owner;
  if (attached_none_yet || last_seizer.load(std::memory_order_relaxed) == owner) return kInherited;
  return {0, false, Unknown::kOptions};
}

// A thread that the kernel attaches by itself (PTRACE_O_TRACECLONE, …) has options from the one that made it:
// a thread of its own process, or its parent. Where that one is gone, from any other, if these are all alike.
// A child of the tracer has asked for it itself (PTRACE_TRACEME), and has none.
Origin origin_of(int tid, int tracer, int owner) {
  const ProcText status(tid, 0, "/status");
  const int process = static_cast<int>(status.number("\nTgid:\t", 10)),
            parent = static_cast<int>(status.number("\nPPid:\t", 10));
  const Tracee* any = nullptr;
  bool alike = true;
  for (const Tracee& t : table) {
    const int there = t.tid.load(std::memory_order_relaxed);
    if (there <= 0 || there == tid || t.tracer != tracer || t.owner != owner) continue;
    if (there == (process != tid ? process : parent)) return like(t);
    if (sys::call(__NR_kill, there, 0L) == -ESRCH) continue;
    if (any != nullptr && like(*any) != like(t)) alike = false;
    any = &t;
  }
  if (parent == owner && process == tid) return {};
  return any != nullptr && alike ? like(*any) : unknown_origin(owner);
}

Tracee* add(int tid, int tracer, int owner, Origin origin) {
  for (Tracee& t : table) {
    int there = t.tid.load(std::memory_order_relaxed);
    // An entry of the parent, of which this process is a fork, or of a tracee that is gone.
    if (there != 0 && t.owner == owner && sys::call(__NR_kill, there, 0L) == 0) continue;
    if (!t.tid.compare_exchange_strong(there, -1, std::memory_order_relaxed)) continue;
    last_owner.store(owner, std::memory_order_relaxed);
    t.tracer = tracer;
    t.owner = owner;
    t.process = t.signal = 0;
    t.resumed_by = 0;
    t.options = origin.options;
    t.seized = origin.seized;
    t.unknown = origin.unknown;
    if (origin.seized || origin.unknown == Unknown::kSeized) note_seizer(owner);
    t.state = Tracee::State::kNone;
    t.is_new = false;
    t.stands = t.joined = t.in_call = t.asked = t.interrupted = t.stopped_late = t.attaches = false;
    t.stop_came = t.marker = 0;
    // release: who finds the number finds the rest.
    t.tid.store(tid, std::memory_order_release);
    return &t;
  }
  overflown.store(owner, std::memory_order_relaxed);
  return nullptr;
}

// Children of a process's thread that this thread traces, and of which the table knows nothing.
void note_children(int process, int thread, Origin origin) {
  const int tracer = static_cast<int>(sys::gettid()), owner = sys::getpid();
  const ProcText children(process, thread, "/children");
  for (std::string_view left = children.text(); !left.empty();) {
    const int child = static_cast<int>(to_number(left, 10));
    left.remove_prefix(std::min(left.size(), left.find(' ') + 1));
    if (child == 0 || find(child, tracer, owner) != nullptr) continue;
    if (static_cast<int>(ProcText(child, 0, "/status").number("\nTracerPid:\t", 10)) == tracer)
      add(child, tracer, owner, origin);
  }
}

// By the program.
Tracee* begin(int tid, int tracer, int owner, Origin origin) {
  Tracee* const t = add(tid, tracer, owner, origin);
  if (t != nullptr) begun_so_far.fetch_add(1, std::memory_order_relaxed);
  return t;
}

bool resumes(long request) {
  return request == PTRACE_CONT || request == PTRACE_SYSCALL || request == PTRACE_SINGLESTEP ||
         request == PTRACE_SYSEMU || request == PTRACE_SYSEMU_SINGLESTEP || request == PTRACE_LISTEN ||
         request == 33;  // PTRACE_SINGLEBLOCK
}

bool attaches(long request) { return request == PTRACE_ATTACH || request == PTRACE_SEIZE; }

void note_attached(Tracee& t, long request, uint64_t data) {
  t.seized = request == PTRACE_SEIZE;
  t.options = t.seized ? static_cast<uint32_t>(data) : 0;
  if (t.seized) note_seizer(t.owner);
}

bool is_noted_ahead(long request) {
  return resumes(request) || attaches(request) || request == PTRACE_SETOPTIONS;
}

}  // namespace

std::span<Tracee> tracees() {
  // The table is not touched where nobody traces.
  return last_owner.load(std::memory_order_relaxed) != 0 ? std::span<Tracee>(table) : std::span<Tracee>();
}
uint32_t begun() { return begun_so_far.load(std::memory_order_relaxed); }
bool has_overflown() { return overflown.load(std::memory_order_relaxed) == sys::getpid(); }

void note_found(int tid) {
  const int tracer = static_cast<int>(sys::gettid()), owner = sys::getpid();
  if (find(tid, tracer, owner) == nullptr) add(tid, tracer, owner, origin_of(tid, tracer, owner));
}

void note_children_of(int tid) {
  const Tracee* const t = find(tid, static_cast<int>(sys::gettid()), sys::getpid());
  if (t != nullptr)
    note_children(static_cast<int>(ProcText(tid, 0, "/status").number("\nTgid:\t", 10)), tid, like(*t));
}

void note_inherited() { note_children(sys::getpid(), static_cast<int>(sys::gettid()), kInherited); }

// Ahead of the call, for the tracee may stop for the checkpoint right behind it.
void note_before(long request, int tid, uint64_t data) {
  if (!is_noted_ahead(request) && request != PTRACE_DETACH) return;
  const int tracer = static_cast<int>(sys::gettid()), owner = sys::getpid();
  Tracee* t = find(tid, tracer, owner);
  if (request == PTRACE_DETACH) {
    // One that it has made, and that the tracer goes on with, has its options.
    constexpr uint32_t kAttachChildren = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE;
    if (t != nullptr && (t->options & kAttachChildren) != 0) {
      const int process = static_cast<int>(ProcText(tid, 0, "/status").number("\nTgid:\t", 10));
      note_children(process, tid, like(*t));
    }
    return;
  }
  if (attaches(request)) {
    // One that is known is attached already, or of a thread that is gone.
    if (t != nullptr || (t = begin(tid, tracer, owner, {})) == nullptr) return;
    note_attached(*t, request, data);
    t->is_new = true;
    return;
  }
  if (t == nullptr) t = begin(tid, tracer, owner, origin_of(tid, tracer, owner));
  if (t == nullptr) return;
  if (request == PTRACE_SETOPTIONS) {
    t->options_before = t->options;
    t->unknown_before = t->unknown;
    t->options = static_cast<uint32_t>(data);
    if (t->unknown == Unknown::kOptions) t->unknown = Unknown::kNothing;
    return;
  }
  t->resumed_before = t->resumed_by;
  t->resumed_by = static_cast<int>(request);
}

void note_after(long request, int tid, uint64_t data, bool done) {
  if (request == PTRACE_TRACEME) return;
  if (!attaches(request) && done == is_noted_ahead(request)) return;
  const int tracer = static_cast<int>(sys::gettid()), owner = sys::getpid();
  Tracee* t = find(tid, tracer, owner);
  if (attaches(request) && (!done || (t != nullptr && t->is_new))) {
    if (!done && t != nullptr && t->is_new) return t->tid.store(0, std::memory_order_release);
    if (done) t->is_new = false;
    return;
  }
  if (is_noted_ahead(request) && !attaches(request)) {
    if (t == nullptr) return;
    if (request == PTRACE_SETOPTIONS)
      t->options = t->options_before, t->unknown = t->unknown_before;
    else
      t->resumed_by = t->resumed_before;
    return;
  }
  if (request == PTRACE_DETACH || request == PTRACE_KILL) {
    if (t != nullptr) t->tid.store(0, std::memory_order_release);
    return;
  }
  if (attaches(request)) {
    if (t != nullptr) t->tid.store(0, std::memory_order_release);
    t = begin(tid, tracer, owner, {});
    if (t == nullptr) return;
    note_attached(*t, request, data);
    return;
  }
  if (t == nullptr) begin(tid, tracer, owner, origin_of(tid, tracer, owner));
}

}  // namespace ckpt::tracing
