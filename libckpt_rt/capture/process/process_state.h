// What the kernel knows about the process as a whole, apart from memory, threads and descriptors:
// signal actions, timers, limits, the mm description.
//
// Owner:     libckpt_rt. The state lives in the library's data, so the image holds it, and the
//            library inside a restored process gives it back (restart_entry.cc).
// Callers:   the agent and, of what all threads find the same, a stopped thread; all stand: all of it must be
//            of one instant.
// Source:    rt_sigaction(2), timer_create(2), /proc/PID/timers, prctl(2) PR_SET_MM, proc(5).
#pragma once

#include "base/memory/arena.h"
#include "base/memory/bytes.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/capture/process/children.h"
#include "libckpt_rt/capture/process/process_timers.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"

namespace ckpt {

// Children that SIGCONT continued, which the program was not told yet (WCONTINUED).
struct ContinuedChildren {
  static constexpr int kMost = 16;
  int count = 0;  // more than kMost: of the others nothing is known
  int pids[kMost] = {};
};

struct ProcessState {
  static constexpr int kSignals = 64;

  KernelSigaction actions[kSignals];
  ResourceLimitsRecord limits;
  ProcessTimers timers;
  uint32_t membarrier;
  int64_t realtime_ns, monotonic_ns, boottime_ns;
  uint64_t brk;
  uint64_t cap_bounding, cap_ambient;
  int secure_bits;   // of the agent, which has its starter's
  int future_locks;  // what mlockall(2) has said of mappings to come: MCL_FUTURE, with MCL_ONFAULT, or 0
  char oom_score_adj[16];  // lines of /proc/self/oom_score_adj and coredump_filter; empty: unknown
  char core_filter[16];
  int session_nice;  // /proc/self/autogroup of a session's leader; 0: as by default, or no leader
  int memory_merge, no_new_code;  // of prctl(2); -1: this kernel does not say
  int dumpable;                   // PR_GET_DUMPABLE
  int child_subreaper;            // PR_GET_CHILD_SUBREAPER
  int thp_disable;                // PR_GET_THP_DISABLE; -1: this kernel does not say
  int stop_signal;                // by which the process was stopped; 0: it was not
  ContinuedChildren continued;
};

// One object, in the library's own data: an image holds it, and a restarted process is restored from it.
extern ProcessState saved_process;

// What only tools and ckpt-restart need, and the library does not.
struct ProcessFacts {
  ProcessRecord process{};
  MmRecord mm{};
  std::string_view cwd, root, comm, exe;
  std::span<const std::byte> auxv, groups;
  uint32_t seccomp_filters = 0;
  bool has_children = false;
  std::span<const LostChild> children;  // of an image of the program alone
  int parent_death_signal = 0;          // of some thread
  ContinuedChildren continued;
};

// Both of the calling thread.
uint32_t count_seccomp_filters();
// Asked without a call that a filter may punish. True also where the kernel does not tell.
bool is_filtered();

// Texts of /proc that the stop reads. The files are opened ahead of the stop: opening is most of their price.
class ProcessTexts {
 public:
  enum Text { kStatus, kStat, kAuxv, kComm, kTimers, kOomScore, kCoreFilter, kTexts };
  // Where few descriptors are allowed none is: each is opened in the stop then.
  void open();
  // With the threads standing. As read_small_file. tid: a thread of the program; leader_exited: another than
  // the leader.
  long read(Text which, int tid, bool leader_exited, char* buffer, size_t size) const;
  bool filtered() const { return filtered_; }  // is_filtered() as they were opened

 private:
  ScopedFd files_[kTexts];
  bool filtered_ = true;
};

// Both with the threads standing. tid: StopState::first_thread().
Result<void> read_process_facts(Arena& arena, const ProcessTexts& texts, int tid, bool leader_exited,
                                ProcessFacts& facts);
// All but the timers (process_timers.h). capture_shared_state_stopped: what every thread finds the same, by
// any thread; filtered: no call that is unusual is made. The other: the agent.
void capture_shared_state_stopped(bool filtered, ProcessState& state);
void capture_process_state_stopped(const ProcessTexts& texts, ProcessState& state);

// Restart, in the leader, all signals blocked. The first error, or 0.
long restore_signal_actions(const ProcessState& state);
// Restart, in the leader, when nothing more is mapped for us and while it still has its rights. LibraryNotes
// of what could not be set.
uint32_t restore_process_settings(const ProcessState& state);

}  // namespace ckpt
