// Agents of many hosts in one process: each has the agent's states (cluster/protocol/agent_machine.h) and a
// sealed link to the real head, and says what an agent says. Its host's processes are a clock: how long they
// take from step to step.
//
// Owner: bench/hosts. One thread of its own.
#pragma once

#include <atomic>
#include <queue>
#include <random>
#include <thread>
#include <vector>

#include "cli/hosts/crew/crew.h"
#include "cluster/protocol/agent_machine.h"

namespace ckpt::bench {

// What one host does in one checkpoint, on its way to `step`.
struct Trouble {
  enum class Kind { kNone, kSlow, kFails, kFailedBefore, kDies, kCutOff } kind = Kind::kNone;
  int host = -1;
  cluster::Step step = cluster::Step::kNone;
  int64_t slow_ns = 0;
};

// Of one checkpoint.
struct Seen {
  uint64_t to_hosts = 0, to_head = 0, bytes = 0;
  int64_t longest_stand_ns = 0;  // of any host, from standing to going on
  uint32_t parts = 0;            // durable, and not removed
};

class SimulatedAgents {
 public:
  // Connects one agent for each host of the crew. stop_timeout_ns: as of the job.
  SimulatedAgents(cli::Crew& crew, int64_t stop_timeout_ns);
  ~SimulatedAgents();
  SimulatedAgents(const SimulatedAgents&) = delete;

  void begin(const Trouble& trouble);  // ahead of a checkpoint
  // Waits until no host that still has its agent stands or waits. False: not within `patience_ns`.
  bool settle(int64_t patience_ns);
  Seen seen() const;
  // The program ends on the first host.
  void end_program();

 private:
  struct Agent {
    cluster::SealedLink link;
    cluster::AgentMachine machine;
    int64_t deadline_ns = 0, stood_ns = 0;
    bool durable = false, cut_off = false;
    uint64_t generation = 0;  // what was planned before is void
  };
  struct Event {
    int64_t at_ns;
    int host;
    uint64_t generation;
    cluster::Step step;  // kNone: the processes' checkpoint is over
    bool operator>(const Event& other) const { return at_ns > other.at_ns; }
  };

  void loop();
  void hear(int host);
  void happen(const Event& event);
  void act(int host, const cluster::AgentMachine::Actions& actions);
  void plan(int host, cluster::Step step);
  void go_on(Agent& agent);
  void tell(Agent& agent, const cli::Json& what);
  int64_t time_for(cluster::Step step);

  std::vector<Agent> agents_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  const int64_t in_stop_ns_;
  std::mt19937 random_{4711};
  Trouble trouble_;
  Seen seen_;
  std::atomic<bool> done_{false};
  // Held by the thread except while it waits for something to happen.
  mutable std::mutex lock_;
  ScopedFd epoll_, wake_;
  std::thread thread_;
};

}  // namespace ckpt::bench
