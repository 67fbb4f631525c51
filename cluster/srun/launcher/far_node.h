// The launcher's end of one node: the process that leads there, what is to be sent, and what came.
//
// Owner:     cluster/srun, the launcher. One thread.
// Callers:   the launcher.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "cluster/on/window.h"
#include "cluster/srun/frames.h"

namespace ckpt::cluster::srun {

class FarNode {
 public:
  // Through ckpt-on, or a child where `here`: the node is this host.
  bool connect(const std::string& name, bool here);

  void say(Say what, int task, std::string_view bytes = {}) { out_ += write_frame(what, task, bytes); }
  bool wants_to_write() const { return !out_.empty() && to_.valid(); }
  // So much that no more is to be read from there: it may be questions.
  bool is_behind() const { return wants_to_write() && out_.size() - written_ > kMostOut; }
  void write_some();
  // What was said is the last: its input ends.
  void end() { to_.reset(); }
  // False: the node is gone.
  bool read_some(std::vector<Frame>& frames);

  const std::string& name() const { return name_; }
  int from() const { return from_.get(); }
  int to() const { return to_.get(); }
  pid_t pid() const { return pid_; }
  bool there() const { return from_.valid(); }

  SendWindow inputs;
  ReceiveWindow outputs;
  bool done = false;  // all of its tasks

 private:
  static constexpr size_t kMostOut = 16 << 20;

  std::string name_;
  std::string out_;     // for the node, behind the first written_ bytes
  size_t written_ = 0;  // less than half of out_, so that each byte is moved once at most on average
  pid_t pid_ = -1;
  ScopedFd to_, from_;
  FrameReader reader_;
};

}  // namespace ckpt::cluster::srun
