// What watches the agent of a host whose job goes on elsewhere when the host is lost (--recover). An agent
// that hangs or is killed ends nothing, while its host's processes run on; so a process beside it, the
// warden, ends them, and then the agent, before the head gives the host up. By the agent's end the head hears
// of it. Where the warden is frozen as well, the guard does (agent_guard.h).
//
// Owner: cli, the agent. Callers: its one thread; beats come from a thread of this object, as long as the
//        agent's own thread comes round.
// Never: ends anything while the agent lives and beats, or when it has ended in order.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "base/exit_codes.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "cli/hosts/agent/agent_beats.h"
#include "cli/hosts/agent/agent_guard.h"

namespace ckpt::cli {

class AgentWarden {
 public:
  AgentWarden() = default;
  ~AgentWarden() { end(); }
  AgentWarden(const AgentWarden&) = delete;
  AgentWarden& operator=(const AgentWarden&) = delete;

  // patience_ms: how long the agent may be without a beat.
  Result<void> begin(const std::string& job, const std::string& host, int patience_ms);
  bool runs() const { return warden_ > 0; }
  // Warden and guard: below the agent, and not of the job.
  std::set<int> own_processes() const { return {warden_, guard_.process()}; }
  // The agent's thread has come round.
  void come_round();
  // A child of the agent has ended: another warden is started if it was this one.
  void reap(pid_t ended);
  // The agent ends in order: nothing is left to watch.
  void end();

 private:
  bool start();
  void beat();

  std::string job_, host_;
  int patience_ms_ = 0;
  ScopedFd memory_;
  AgentGuard guard_;
  AgentBeats* beats_ = nullptr;  // in it
  std::atomic<pid_t> warden_ = -1;
  ScopedFd warden_fd_;
  std::thread thread_;
  std::mutex lock_;
  std::condition_variable stopped_;
  bool stops_ = false;
  std::atomic<int64_t> round_ns_{0};
};

// `ckpt agent-warden JOB HOST AGENT PATIENCE_MS`, whose standard input is the memory of beats.
ExitCode run_agent_warden(const std::string& job, const std::string& host, int agent, int patience_ms);

}  // namespace ckpt::cli
