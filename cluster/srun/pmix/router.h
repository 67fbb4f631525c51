// Between the PMIx servers of a step's nodes: brings fences together, and takes a question for what a rank
// has put to that rank's node. It is in ckpt-srun, a member of the job.
//
// Owner:     cluster/srun/pmix. Pure: messages of a node in, messages for nodes out. One thread.
// Callers:   the launcher.
// Never:     believes a node that a rank is its own.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cluster/srun/asked/layout.h"
#include "cluster/srun/pmix/message.h"

namespace ckpt::cluster::srun {

class PmixRouter {
 public:
  explicit PmixRouter(const Layout& layout);

  struct Actions {
    std::vector<std::pair<int, PmixMessage>> send;  // node, message
    int aborted_by = -1;                            // all tasks are to end
    std::string why;
    int status = 0;  // with which the program ends then
  };
  void hear(int node, const PmixMessage& message, Actions& actions);
  // The task waits for others, and they for the task: it has begun, and not said that it has done with PMIx.
  bool is_in(int task) const { return in_.contains(task); }

 private:
  struct Came {
    uint64_t id;
    std::string data;
  };
  // Of one set of ranks: what each of their nodes has come with, oldest first.
  struct Fence {
    std::map<int, std::deque<Came>> nodes;
  };
  void fence(int node, const PmixMessage& m, Actions& actions);
  bool is_of(int rank, int node) const {
    return rank >= 0 && rank < layout_.count() && layout_.node_of[static_cast<size_t>(rank)] == node;
  }
  // Gives a set of ranks one name, however the set was written: "" for all of the step. False: there is no
  // such set.
  bool settle(std::string& ranks, std::set<int>& nodes) const;

  Layout layout_;
  std::map<std::string, Fence> fences_;
  std::set<int> in_;
};

}  // namespace ckpt::cluster::srun
