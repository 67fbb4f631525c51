// Between ckpt-restart's restorer and libckpt_rt inside the restored memory.
//
// The new process has one thread, the leader, whose tid is the saved pid. As ckpt-restart's child it has made
// descriptors, cwd and umask. The restorer (freestanding, in a range free in the image) has then rebuilt all
// memory, the mm description, limits, clocks and credentials. It calls
//     ProcessRecord::restart_entry(const RestartArgs*)      on a stack inside restorer_range
// which never returns: it restores signal actions, creates every thread, restores timers, and each thread
// goes on from its signal frame. The library unmaps restorer_range before the program runs.
//
// All signals are blocked in the leader when the entry is called; the restorer has unregistered
// its own rseq area and cleared its own robust list.
//
// User and group ids are already the saved ones, as far as allowed. Capabilities are per thread, and
// clone3 with set_tid needs one: the leader still has CAP_CHECKPOINT_RESTORE, threads inherit it, and
// every thread gives it up with capset(2) to cap_* below once all threads exist.
//
// A process of a job reports kThreadState when it stands ready, and then waits for its byte from go_fd, so
// that none runs before all are complete. The end of that pipe means that the restart has failed. A member
// that was stopped, as its parent knew (RestartStopped::kEarly), reports kGo before that: it stops itself,
// and ckpt-restart does not wait until somebody continues it.
//
// Owner:     base. Callers: ckpt-restart fills it in and reads what is reported, its restorer calls the
//            entry, the library behind the entry reports.
#pragma once

#include <cstdint>

namespace ckpt {

inline constexpr uint32_t kRestartProtocolVersion = 6;

// What ckpt-restart, the restorer and the library report while they work: each stage by the one that has done
// it. The stages follow each other in this order, but for kTimers, which comes after kThreads (timers may
// name threads). The numbers are those of reports.
enum class RestartStage : uint32_t {
  kStart = 0,
  kNamespaces = 1,    // ckpt-restart: user, pid, time namespaces entered
  kProcess = 2,       // ckpt-restart: process with the old pid exists
  kDescriptors = 3,   // ckpt-restart's child: descriptors, cwd, umask
  kUnmapped = 4,      // restorer: nothing left of ckpt-restart but the restorer, which has moved the vdso
  kMemory = 5,        // restorer: all mappings made and filled
  kMm = 6,            // restorer: PR_SET_MM_MAP, limits, clocks, timerfds, credentials, locks of files
  kSignals = 7,       // library: signal actions
  kTimers = 8,        // library: itimers, POSIX timers
  kThreads = 9,       // library: all threads created with their tids
  kThreadState = 10,  // library: every thread has restored its own state
  kGo = 11,  // library: threads are about to be released; of a member that stops early: before it waits
};

// Written to RestartArgs::status_fd, one struct by one write(2): progress (error 0) or the failure.
struct RestartStatus {
  uint32_t stage;  // RestartStage reached, or in which it failed
  int32_t error;   // errno, 0 for progress
  int32_t tid;     // of the library: the thread it concerns, or 0; of the restorer: its step (RestorerStep)
  // kMemory, failed: index of the mapping; kMm, reached: the restorer's notes (RestorerNote); kThreadState,
  // reached: LibraryNotes; kGo: kStopsItself or 0; else free.
  uint32_t detail;
};

// RestartStatus::detail of a failure in kThreadState: SEM_UNDO adjustments cannot be made again; a socket
// cannot be mapped; a context of asynchronous I/O cannot be had; an io_uring cannot; a thread cannot be in
// its own working directory, or become its own user.
inline constexpr uint32_t kDetailSemaphores = 1, kDetailSockets = 2, kDetailAio = 3, kDetailRings = 4,
                          kDetailDirectory = 5, kDetailThreadUser = 6;

// RestartStatus::detail of kGo: the process was stopped at the checkpoint, and stops itself next.
inline constexpr uint32_t kStopsItself = 1;

// What the library could not bring back as it was, without being fatal.
enum LibraryNote : uint32_t {
  kNoteScheduling = 1u << 0,   // of some thread: policy, priority, nice
  kNoteAffinity = 1u << 1,     // of some thread
  kNoteIoPriority = 1u << 2,   // of some thread
  kNoteFutureLocks = 1u << 3,  // mlockall(MCL_FUTURE)
  kNoteOomScore = 1u << 4,
  kNoteAmbient = 1u << 5,              // ambient capabilities
  kNoteThreadUser = 1u << 6,           // users or groups of some thread
  kNoteGuards = 1u << 8,               // MADV_GUARD_INSTALL
  kNoteSeals = 1u << 9,                // mseal(2)
  kNoteThreadSets = 1u << 10,          // of some thread: bounding set
  kNoteSecureBits = 1u << 11,          // of some thread
  kNoteSegments = 1u << 12,            // modify_ldt(2), or a register that names a segment
  kNoteKeys = 1u << 14,                // pkey_mprotect(2)
  kNoteFilters = 1u << 15,             // seccomp(2)
  kNoteThreadCapabilities = 1u << 13,  // `ckpt back`: of a thread that was made again
  kNoteMemoryPolicy = 1u << 7,         // of some thread or memory: nodes that this machine does not have
};

enum class RestartStopped : uint32_t {
  kNo = 0,
  kEarly = 1,  // before it waits for go_fd
  kLate = 2,   // when it is let go, ahead of the others: its parent is told, by SIGCHLD and wait(2)
};

enum RestartRights : uint32_t {
  kSetsCapabilities = 1,  // a thread of which no more is known has the capabilities below, before it goes on
  // ckpt-restart may choose users and groups, and each thread has its own again, or there is no restart.
  kChoosesUsers = 2,
};

struct RestartArgs {
  uint32_t protocol;        // kRestartProtocolVersion
  int32_t status_fd;        // pipe to ckpt-restart; the library closes it after kGo. -1: none
  uint64_t restorer_start;  // range the library must unmap
  uint64_t restorer_end;
  // ProcessRecord::restart_state: where the entry's state lies. The library's is this_process, and it refuses
  // to go on if that lies elsewhere now.
  uint64_t restart_state;
  int64_t monotonic_shift_ns;  // new CLOCK_MONOTONIC minus saved, 0 when a time namespace hides it
  uint32_t set_capabilities;   // RestartRights
  int32_t go_fd;               // pipe: one byte says that all of the job stand ready. -1: nobody to wait for
  uint64_t cap_effective, cap_permitted, cap_inheritable;
  // A page behind the restorer range; 0: all memory is there. A thread that reads this page waits until all
  // memory is there. The library keeps it until then; before, it takes no checkpoint.
  uint64_t loading_gate;
  // Of a job. The process was stopped by a signal, and its parent knew (RestartStopped). So many children of
  // this one stop early, and it takes notice of that before it stands ready, as it had.
  uint32_t stopped, stopped_children;
};

using RestartEntry = void (*)(const RestartArgs*);

}  // namespace ckpt
