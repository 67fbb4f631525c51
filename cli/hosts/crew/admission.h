// Who connects to the head while it assembles its hosts: an agent that proves that it knows the job's secret,
// or a stranger, who may say nothing for as long as SealedLink::accept() waits. Each is met on a thread of
// its own, so that none waits for another.
//
// Owner: cli, the head. Callers: one thread.
#pragma once

#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "base/raii_fd.h"
#include "cli/text/json_lines.h"
#include "cluster/link/sealed_link.h"

namespace ckpt::cli {

class Admission {
 public:
  struct Guest {
    cluster::SealedLink link;
    Json here;  // what the agent says first
  };

  explicit Admission(const cluster::Secret& secret) : secret_(secret) {}
  // A caller that is still being met counts as a stranger: its connection is shut.
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // False: others wait in the queue of the listening socket.
  bool has_room() const { return meetings_.size() < kMostAtOnce; }
  void meet(ScopedFd peer);
  // Agents that have come since the last call.
  std::vector<Guest> take();

 private:
  static constexpr size_t kMostAtOnce = 64;
  struct Meeting {
    ScopedFd socket;  // the same one as the thread's, to shut it
    std::thread thread;
    bool over = false;  // under lock_
  };

  void greet(ScopedFd peer, Meeting& meeting);

  const cluster::Secret& secret_;
  std::mutex lock_;
  std::vector<Guest> guests_;  // under lock_
  std::list<Meeting> meetings_;
};

}  // namespace ckpt::cli
