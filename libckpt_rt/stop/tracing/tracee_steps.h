// One tracee through a checkpoint, by the thread that traces it: its stop is looked at, a signal of ours is
// let come to it and delivered, and behind our handler it is put back.
//
// Owner:     tracee_table.h, the entries. Callers: the tracing thread that an entry names, in the handler of
//            the checkpoint signal or behind its wait(2).
// Never:     libc. A wait status that the program is to see is taken.
//
// A stop that belongs to none of this, of an event or of its group, which comes meanwhile: the checkpoint is
// refused, and the tracee goes on to the end of our handler. What stopped it is sent to it again there.
//
//   kRunning ──stop──► kHeld ──signal of ours is pending──► kDelivering ──it is there──► kInHandler
//      ▲ │                ▲                                              marker, rt_sigreturn │
//      │ └──signal of ours is there: delivered───────────────────────────────────────────────►│
//      └──────────────────┴───────────────────────────────────────────────────────── put back ┘
#pragma once

#include <atomic>

#include "base/sys.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/stop/tracing/tracee_table.h"

namespace ckpt::tracing {

inline int tid_of(const Tracee& t) { return t.tid.load(std::memory_order_acquire); }
// The checkpoint's signal there: its program may use ours, and has had it moved (entry/moved_signal.h).
inline int signal_of(const Tracee& t) { return t.signal != 0 ? t.signal : own_signal.number; }
inline void forget(Tracee& t) { t.tid.store(0, std::memory_order_release); }

// The entries of the calling thread.
template <typename Do>
void for_each_own(Do what) {
  if (tracees().empty()) return;  // no system call either: at a restart every thread comes here
  const int self = sys::gettid(), owner = sys::getpid();
  for (Tracee& t : tracees()) {
    if (tid_of(t) > 0 && t.tracer == self && t.owner == owner) what(t);
  }
}

// What has happened to it is seen to. False: nothing.
bool look(Tracee& t);
// It has ended, and wait(2) has not told the program yet.
void note_end(Tracee& t);
// It is in a stop, of which wait(2) has told the program, or not.
void hold(Tracee& t, bool reported);
// Of a held one for which a signal of ours waits, or for its process: it comes to that, and no further.
bool let_come(Tracee& t);
// At the end of our handler: as it was before the checkpoint. marker: the signal that stopped it there.
void put_back(Tracee& t, const siginfo_t& marker);
// In our handler, or on the way to it or back, it came into a stop that is none of these: it goes on by
// `request`, and what stopped it is sent again: a signal at once, blocked, a stop behind the handler. asked:
// how the kernel answered to PTRACE_GETSIGINFO.
void note_stop_meanwhile(Tracee& t, long asked, const siginfo_t& info, long request);
// The service is over, and no signal of ours has come to it: it is sent what was taken from it meanwhile.
void give_back(Tracee& t);
// Is it on its way through our handler, or to it?
inline bool is_on_its_way(const Tracee& t) {
  return t.state == Tracee::State::kInHandler || t.state == Tracee::State::kDelivering;
}
// Some tracee takes another signal for the checkpoint: pass_on() looks at stops by any signal.
void look_at_all_stops();

// The first tracee that cannot be put back, and why. nullptr: none.
struct Refusal {
  int tid;
  const char* why;
};
// Reasons that are over by themselves, some when the tracee's library has started.
bool is_over_soon(const char* why);
extern const char* const kInVfork;
void refuse(const Tracee& t, const char* why);
Refusal refusal();
void forget_refusal();

}  // namespace ckpt::tracing
