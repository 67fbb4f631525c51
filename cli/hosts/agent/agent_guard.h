// What ends the job's processes on a host where everything is frozen together: processes, agent and warden
// (SIGSTOP, a control group's freezer, a machine that is suspended). None of these can act then, and what is
// thawed when the job runs elsewhere must not go on. So the kernel acts for them, by three things that need
// no process to run:
//
//   1. The guard, a process, has a timer of the kernel that kills the guard. The guard puts the timer off as
//      long as the agent beats.
//   2. The guard has the only writing end of a pipe: with the guard's end the pipe is closed.
//   3. The agent has opened the reading end once for each group of the job's processes here, with O_ASYNC,
//      the group as owner and SIGKILL as signal. The kernel sends that when the pipe is closed; SIGKILL ends
//      frozen processes, too. The agent has opened that end once more for itself: by the agent's end the head
//      hears of it.
//
// Owner: cli, the agent's warden object. take_in() is called by the thread of beats, the others by the
//        agent's one thread, while that one does not run. Callers: the warden.
// Never: lets the pipe be closed in order before no process has its signal any more (end()).
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "base/exit_codes.h"
#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::cli {

class AgentGuard {
 public:
  AgentGuard() = default;
  ~AgentGuard() { end(); }
  AgentGuard(const AgentGuard&) = delete;
  AgentGuard& operator=(const AgentGuard&) = delete;

  // beats: memory of AgentBeats.
  Result<void> begin(int beats, int patience_ms);
  // The processes below the agent, as they are now. Processes that were born since the call before are not
  // guarded if they made a group of their own.
  void take_in(pid_t warden);
  pid_t process() const { return guard_; }
  // The agent ends in order: nobody is killed by this guard any more.
  void end();

 private:
  // owner: as of F_SETOWN, a process or, negative, a group.
  ScopedFd signal_to(pid_t owner) const;

  ScopedFd pipe_;  // its reading end
  pid_t guard_ = -1;
  ScopedFd guard_fd_;
  std::map<pid_t, ScopedFd> signals_;  // by owner
};

// `ckpt agent-guard PATIENCE_MS`, whose standard input is the memory of beats, and whose standard output the
// pipe.
ExitCode run_agent_guard(int patience_ms);

}  // namespace ckpt::cli
