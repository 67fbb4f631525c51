// ckpt agent: one on each host for the time of a job. The agent knows the job's secret and connects to the
// head. The agent listens to nobody but this host's own user, and has the host's processes below it.
//
// Files: agent.cc has its loop, and what it hears from this host; agent_orders.cc does what the head orders.
//
// Owner: cli. One thread. Callers: run_agent().
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "cli/hosts/agent/agent_warden.h"
#include "cli/hosts/agent/local_checkpoint.h"
#include "cli/keeper/exchange_process.h"
#include "cli/text/json_lines.h"
#include "cluster/link/sealed_link.h"
#include "cluster/protocol/agent_machine.h"

namespace ckpt::cli {

class Agent {
 public:
  explicit Agent(Json task) : task_(std::move(task)) {}
  ExitCode run();

 private:
  // agent.cc
  void tell(const Json& what);
  void cannot(const Error& error);
  void lose_head();
  void loop();
  void hear_head();
  void hear_restart();
  void hear_user();
  void hear_local();
  void look_for_end();
  void act(const cluster::AgentMachine::Actions& actions);
  void end_all();

  // agent_orders.cc
  void obey(const Json& order);
  Result<void> start(const Json& order);
  Result<void> start_program(const Json& order);
  Result<void> start_restart(const Json& order);
  bool spawn(const std::vector<std::string>& words, int inherited_fd);
  Result<void> begin_back(const Json& order);
  void end_half_way(uint64_t id);
  bool stands_behind(uint64_t id) const;
  Result<void> reconnect(const Json& order);
  void hear_of_move(const std::string& say, uint64_t id);

  // How long a checkpoint that is durable waits for the head's word whether it counts.
  static constexpr int64_t kInDoubtNs = 30'000'000'000;

  const Json task_;
  AgentWarden warden_;
  cluster::SealedLink link_;
  std::string address_, job_, directory_, images_, leave_out_;  // images_: where parts go
  std::optional<std::vector<std::string>> stay_;                // of them, when the job has ended
  ScopedFd on_socket_, users_, restart_;
  pid_t child_ = -1;
  int root_ = -1;  // of restarted processes, the first
  cluster::AgentMachine machine_;
  LocalCheckpoint local_;
  ExchangeProcess exchange_{"keeper-exchange", ExchangeProcess::Life::kStays}, save_{"keeper-save"},
      back_{"back-part"};
  Answer lines_;
  std::optional<Error> error_;
  uint32_t attempt_ = 1;
  bool full_ = false, stays_ = false, recovers_ = false;
  bool ends_at_once_ = false;  // Crew::end_at_once()
  bool stuck_ = false;         // some processes here have new connections and some have not: none goes on
  int64_t deadline_ns_ = 0, in_stop_ns_ = 2'000'000'000;
  int asked_ = 0;
  std::map<int, ScopedFd> askers_;
  bool done_ = false;
};

}  // namespace ckpt::cli
