// The half of ckpt-srun that runs on a node of the step: starts the tasks there, and hands their streams,
// their PMI and their ends to the launcher. A member of the job, as the tasks are.
//
// Owner:     cluster/srun. Its own process, one thread: `ckpt-srun --node`. Standard input and output lead to
//            the launcher.
// Callers:   main() of ckpt-srun.
// Never:     outlives the launcher: when its input ends the tasks are killed. Waits in a write: what a
//            launcher or a task does not take is kept, and no more than a window of it is read
//            (cluster/on/window.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/on/window.h"
#include "cluster/srun/frames.h"
#include "cluster/srun/node/local_task.h"
#include "cluster/srun/pmix/host.h"

namespace ckpt::cluster::srun {

class Node {
 public:
  int run();

 private:
  void obey(const Frame& frame);
  void start(const Frame& frame);
  LocalTask* find(int number);
  void wait_and_pass_on();
  void read_orders();
  void read_stream(LocalTask& task, ScopedFd& fd, Say bytes, Say end);
  void read_pmi(LocalTask& task);
  bool start_pmix();
  void pass_on_pmix();
  void feed(LocalTask& task);
  bool may_ask(const LocalTask& task) const;
  void write_out();
  void reap();
  void end_left_over();
  void say(Say what, int task, std::string_view bytes = {}) { out_ += write_frame(what, task, bytes); }
  void kill_all(int signal);

  FrameReader reader_;
  NodeOrder order_;
  std::vector<LocalTask> tasks_;
  std::unique_ptr<PmixHost> pmix_;
  std::string out_;  // for the launcher
  SendWindow outputs_;
  ReceiveWindow inputs_;
  size_t input_bytes_ = 0, input_taken_ = 0;  // of the step's input: came, and was taken by all who get it
  bool started_ = false, done_ = false, over_ = false;
};

}  // namespace ckpt::cluster::srun
