// --cpu-bind: to which processors of its node a task is bound.
//
// Owner:     cluster/srun. Callers: the launcher, which reads what was asked for and orders it for each task;
//            each node, which knows its processors. Any thread.
// Never:     takes a processor that the agent's step may not use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ckpt::cluster::srun {

struct Binding {
  enum class Kind {
    kNone,
    kRank,     // a processor for each task of the node, in turn
    kThreads,  // as many processors for each as it asks for (--cpus-per-task), in turn
    kCores,    // the same, in whole cores
    kMap,      // processors by number, for one task after the other
    kMask,     // sets of processors, the same
  };
  Kind kind = Kind::kNone;
  std::string text;               // as it was asked for, without quiet and verbose
  std::vector<std::string> list;  // of kMap and kMask, each as often as it is meant
};

// kUnsupported: what nobody knows. Sockets and memory domains are taken for no wish.
Result<Binding> read_binding(std::string_view text);

// What a node is told of the task in this place of it; "": it is not bound.
std::string order_of_binding(const Binding& binding, int place, int cpus_per_task);

// The processors of the order, by number, among those that this process may use. Empty: it is bound to none,
// as there are none of these here.
std::vector<int> processors_of(std::string_view order);
// Of the calling process; before exec.
bool bind_to(const std::vector<int>& processors);

}  // namespace ckpt::cluster::srun
