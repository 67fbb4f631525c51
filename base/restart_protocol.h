// Between ckpt-restart's restorer and libckpt_rt inside the restored memory.
//
// The restorer (freestanding, in a range free in the image) has rebuilt all memory, the mm
// description, descriptors, cwd, umask and limits, with exactly one thread: the leader, whose tid
// is the saved pid. It then calls
//     ProcessRecord::restart_entry(const RestartArgs*)      on a stack inside restorer_range
// which never returns: it restores signal actions, timers and every thread, and each thread goes on
// from its signal frame. The library unmaps restorer_range before the program runs.
//
// All signals are blocked in the leader when the entry is called; the restorer has unregistered
// its own rseq area and cleared its own robust list.
//
// User and group ids are already the saved ones, as far as allowed. Capabilities are per thread, and
// clone3 with set_tid needs one: the leader still has CAP_CHECKPOINT_RESTORE, threads inherit it, and
// every thread gives it up with capset(2) to cap_* below once all threads exist.
//
// A process of a job reports kThreadState when it stands ready, and then waits for its byte from go_fd, so
// that none runs before all are complete. The end of that pipe means that the restart has failed.
#pragma once

#include <cstdint>

namespace ckpt {

inline constexpr uint32_t kRestartProtocolVersion = 3;

// What ckpt-restart and the library report while they work; each is confirmed by the one that did it.
enum class RestartStage : uint32_t {
  kStart = 0,
  kNamespaces = 1,    // ckpt-restart: user, pid, time namespaces entered
  kProcess = 2,       // ckpt-restart: process with the old pid exists
  kDescriptors = 3,   // child: descriptors, cwd, umask, limits
  kUnmapped = 4,      // restorer: nothing left of ckpt-restart but the restorer
  kMemory = 5,        // restorer: all mappings made and filled
  kMm = 6,            // restorer: vdso moved, PR_SET_MM_MAP done
  kSignals = 7,       // library: signal actions, pending signals
  kTimers = 8,        // library: itimers, POSIX timers
  kThreads = 9,       // library: all threads created with their tids
  kThreadState = 10,  // library: every thread restored its own state
  kGo = 11,           // library: threads released
};

// Written to RestartArgs::status_fd, one struct by one write(2): progress (error 0) or the failure.
struct RestartStatus {
  uint32_t stage;   // RestartStage reached, or in which it failed
  int32_t error;    // errno, 0 for progress
  int32_t tid;      // the thread it concerns, or 0
  uint32_t detail;  // RestartStage::kMemory: index of the mapping; kThreadState: LibraryNotes; else free
};

// What the library could not bring back as it was, without being fatal.
enum LibraryNote : uint32_t {
  kNoteScheduling = 1u << 0,   // of some thread: policy, priority, nice
  kNoteAffinity = 1u << 1,     // of some thread
  kNoteIoPriority = 1u << 2,   // of some thread
  kNoteFutureLocks = 1u << 3,  // mlockall(MCL_FUTURE)
  kNoteOomScore = 1u << 4,
  kNoteAmbient = 1u << 5,  // ambient capabilities
};

struct RestartArgs {
  uint32_t protocol;        // kRestartProtocolVersion
  int32_t status_fd;        // pipe to ckpt-restart; the library closes it after kGo. -1: none
  uint64_t restorer_start;  // range the library must unmap
  uint64_t restorer_end;
  uint64_t restart_state;      // ProcessRecord::restart_state
  int64_t monotonic_shift_ns;  // new CLOCK_MONOTONIC minus saved, 0 when a time namespace hides it
  uint32_t time_namespace;     // 1: clocks continue
  uint32_t new_pid_namespace;
  uint32_t set_capabilities;  // 1: every thread calls capset with the three below, before it goes on
  int32_t go_fd;              // pipe: one byte says that all of the job stand ready. -1: nobody to wait for
  uint64_t cap_effective, cap_permitted, cap_inheritable;
  // A page behind the restorer range, 0 when all memory is there: who reads it waits until all memory is
  // there. The library keeps it until it has done so; a checkpoint cannot be taken before.
  uint64_t loading_gate;
  // Of a job. The process was stopped by a signal and stops itself before it waits for `go_fd`; so many of
  // its children do so, and their parent takes notice of that before it stands ready, as it had.
  uint32_t stopped, stopped_children;
};

using RestartEntry = void (*)(const RestartArgs*);

}  // namespace ckpt
