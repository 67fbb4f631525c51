// ckpt-srun where the user, or a script of the job, has called srun: one step of the job, from the start of
// its tasks to their end.
//
// Owner:     cluster/srun. Its own process, one thread. A member of the job.
// Callers:   main() of ckpt-srun.
// Never:     asks Slurm for anything: the step is the job's, in the allocation that it has.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/srun/asked/step.h"
#include "cluster/srun/launcher/far_node.h"
#include "cluster/srun/launcher/streams.h"
#include "cluster/srun/pmi/server.h"
#include "cluster/srun/pmix/router.h"

namespace ckpt::cluster::srun {

class Launcher {
 public:
  explicit Launcher(Step step);
  // The exit code of srun: the largest of the tasks', 128 and the signal for one that was killed.
  int run();

 private:
  struct Ended {
    int task, status;
  };
  bool open_streams();
  bool connect();
  void wait_and_pass_on();
  void hear(size_t node, const Frame& frame);
  void hear_end(int task, int status);
  void say_ends(size_t node);
  void lose(size_t node);
  void act(const PmiServer::Actions& actions);
  void route(size_t node, const Frame& frame);
  // status: what the step ends with, where a task has said so.
  void abort_step(int task, const std::string& why, std::optional<int> status = {});
  void read_input();
  void take_interrupts();
  void write_stream(OutputStream& stream);
  // What is left to be said is written, the nodes end, and are waited for. Signals are heard meanwhile.
  void end_nodes();
  void tick();
  void look_at_clock();
  void signal_tasks(int signal);
  // Tasks that this signal does not end are killed 30 seconds later.
  void end_step(int signal);
  bool all_done() const;
  OutputStream* stream_of(int task, bool error);
  FarNode& node_of(int task) {
    return nodes_[static_cast<size_t>(step_.layout.node_of[static_cast<size_t>(task)])];
  }
  // Into the standard error, as soon as it takes it. Errors, which begin with "error:", also if srun is to be
  // quiet.
  template <typename... Args>
  void say(const char* format, Args&&... args);

  Step step_;
  std::deque<FarNode> nodes_;
  std::deque<OutputStream> streams_;
  OutputStream *out_ = nullptr, *err_ = nullptr;  // nullptr: dropped
  OutputStream* own_words_ = nullptr;
  std::vector<ScopedFd> files_;
  std::unique_ptr<PmiServer> pmi_;
  std::unique_ptr<PmixRouter> pmix_;
  std::vector<Ended> ends_;      // heard now, of one node
  std::vector<bool> has_ended_;  // tasks
  int input_ = 0, left_ = 0, code_ = 0;
  int aborted_with_ = -1;  // an exit code: tasks that are killed for it count as this
  bool input_ended_ = false, ending_ = false;
  // How long the step has run: the time of a host is another one's after a restart, and what lies between
  // does not count.
  int64_t run_ns_ = 1, looked_ns_ = 0;
  // In run_ns_; 0: not yet.
  int64_t interrupted_ns_ = 0, kill_at_ns_ = 0, first_end_ns_ = 0;
};

}  // namespace ckpt::cluster::srun
