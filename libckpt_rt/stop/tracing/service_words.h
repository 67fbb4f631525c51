// The words that the agent and the tracing threads of one process share in a service (service.h).
//
// Owner:     the library's data. Callers: service.cc, serving.cc, after_restart.cc; nobody else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/locks/futex.h"
#include "base/sys.h"

namespace ckpt::tracing {

inline constexpr size_t kMostTracers = 8;

// Process and number of the service that is asked for; 0: none. A child that was forked meanwhile has its
// parent's, which is none of its own. seq_cst: a thread takes its place and looks here once more, the agent
// ends the service and looks at the places. So one of them sees the other.
extern constinit std::atomic<uint64_t> asked_service;
inline uint64_t of_this_process(uint64_t low) {
  return static_cast<uint64_t>(sys::getpid()) << 32 | (low & 0xffffffffu);
}
// The process that leads the job's checkpoint. Written before asked_service.
extern constinit std::atomic<int> leading_process;
// Threads that have looked at all their tracees.
extern constinit FutexWord ready;
// Of a place: which service its thread serves. The thread's own.
extern constinit uint64_t served_by[kMostTracers];
// Process and thread, from the moment at which it serves until it leaves the handler; 0: free.
extern constinit std::atomic<uint64_t> places[kMostTracers];
inline bool is_of_this_process(uint64_t who) { return who >> 32 == static_cast<uint64_t>(sys::getpid()); }

// Calls work(argument) on the stack of that place: that of the handler may be an alternate one of a few KiB,
// on the heap (gdb's), and what is said of a thread in /proc alone takes 6.
void on_stack_of(int place, void (*work)(void*), void* argument);
// A place for the calling thread; -1: it traces nobody, or none is free.
int take_place();
void leave_place(int place);

void nap(int64_t ns);
// Some tracee of the calling thread is on its way through our handler.
bool any_on_its_way();
// What has happened to the calling thread's tracees is seen to. False: nothing.
bool step();
// Has the process an agent of ours?
bool has_agent(int process);

}  // namespace ckpt::tracing
