// The server of PMI for the tasks of one step: what slurmstepd and srun are elsewhere. It is in ckpt-srun, a
// member of the job, so all that it knows is in a checkpoint, and a task that asks after a restart is
// answered.
//
// Owner:     cluster/srun/pmi. Pure: bytes of a task in, bytes for tasks out. One thread.
// Callers:   the launcher.
// Never:     believes a task: what is no PMI ends that task's connection.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/srun/asked/layout.h"
#include "cluster/srun/pmi/wire.h"

namespace ckpt::cluster::srun {

class PmiServer {
 public:
  // id: of the step, "7.0".
  PmiServer(const Layout& layout, std::string id);

  struct Actions {
    std::vector<std::pair<int, std::string>> answers;  // task, bytes
    std::vector<int> close;                            // of these tasks nothing more is heard
    int aborted_by = -1;                               // all tasks are to end
    std::string why;                                   // of that, or of a connection that is closed
  };
  void hear(int task, std::string_view bytes, Actions& actions);
  // The task waits for others, and they for the task: it has begun, and not said that it has done with PMI.
  bool is_in(int task) const {
    return tasks_[static_cast<size_t>(task)].began && !tasks_[static_cast<size_t>(task)].finished;
  }

 private:
  struct Task {
    PmiReader reader;
    bool began = false;
    bool finished = false;  // it has said so
    bool closed = false;    // nothing more is heard: it has finished, or what it wrote was no PMI
    bool second = false;    // speaks PMI-2, as far as it was heard
    std::string thread;     // `thrid` of the fence that it waits in
  };
  struct WaitsForNode {
    int task, node;
    std::string key, thread;
  };
  struct InRing {
    bool in = false;
    int count = 0;
    std::string left, right, thread;
  };
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  void answer(int task, const std::string& command, Pairs pairs, Actions& actions,
              const std::string& thread = "");
  bool serve_first(int task, const PmiMessage& m, Actions& actions);
  bool serve_second(int task, const PmiMessage& m, Actions& actions);
  void end(int task, const std::string& command, const PmiMessage& m, Actions& actions);
  void fence(int task, const PmiMessage& m, Actions& actions);
  void ring(int task, const PmiMessage& m, Actions& actions);
  void node_attribute(int task, const PmiMessage& m, Actions& actions);
  void put_node_attribute(int task, const PmiMessage& m, Actions& actions);
  bool put(const std::string& key, const std::string& value);
  bool publish(const std::string& name, const std::string& port);
  bool unpublish(const std::string& name);
  // In the table, in place of what the key had. False: no room.
  bool put_in(std::map<std::string, std::string>& table, const std::string& key, const std::string& value);
  int count() const { return layout_.count(); }

  Layout layout_;
  std::string id_;
  std::vector<Task> tasks_;
  std::map<std::string, std::string> values_, next_values_;  // those are seen behind the next fence
  std::map<std::string, std::string> names_;                 // published: name, port
  std::vector<std::map<std::string, std::string>> of_nodes_;
  std::vector<WaitsForNode> waiting_;
  std::set<int> fenced_;
  std::vector<InRing> ring_;
  int in_ring_ = 0;
  size_t bytes_ = 0;  // of all values, names, and those who wait
};

}  // namespace ckpt::cluster::srun
