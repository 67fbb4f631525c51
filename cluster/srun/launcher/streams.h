// Where the output of tasks goes in the launcher: its own standard output and error, or files.
//
// Owner:     cluster/srun, the launcher. One thread.
// Callers:   the launcher.
// Never:     waits in a write to a pipe or terminal that nobody reads: the other tasks' PMI would wait too.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>

#include "base/raii_fd.h"

namespace ckpt::cluster::srun {

class OutputStream {
 public:
  // fd: not closed here. width: of the number of the task ahead of each line; 0: none.
  OutputStream(int fd, int width) : fd_(fd), width_(width) {}

  // Bytes of a task of this node.
  void add(int node, int task, std::string_view bytes);
  // A line of srun's own.
  void say(std::string line) { pieces_.push_back({0, 0, std::move(line)}); }
  // The task says no more: with labels its last line may be without an end.
  void end(int task);
  bool wants_to_write() const {
    return !pieces_.empty();
  }  // also when nobody reads: they count as passed on then
  int fd() const { return fd_; }
  // poll(2) has said that it can be written. passed_on: node, bytes. False: nobody reads it any more, or it
  // cannot be written: errno has why. Once; from then on all is dropped.
  bool write_some(const std::function<void(int node, size_t bytes)>& passed_on);

 private:
  struct Piece {
    int node;
    size_t bytes;  // as they came from the node
    std::string text;
  };
  std::string label_of(int task) const;

  int fd_, width_;
  bool closed_ = false;
  std::deque<Piece> pieces_;
  std::map<int, std::string> lines_;  // begun, by task
};

}  // namespace ckpt::cluster::srun
