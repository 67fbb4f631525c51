// The PMIx server of one node, for the tasks there: libpmix in ckpt-srun --node, a member of the job. Ranks
// connect to it, on this host; what concerns other nodes goes through the launcher.
//
// Owner:     cluster/srun/pmix. libpmix has a thread of its own, which leaves what it wants in a queue; all
//            functions here are called by the node's one thread.
// Callers:   the node.
// Never:     is linked with libpmix: a host without it has no such server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cluster/srun/asked/step.h"
#include "cluster/srun/pmix/message.h"

namespace ckpt::cluster::srun {

class PmixHost {
 public:
  PmixHost();
  ~PmixHost();  // ranks find their connections closed
  PmixHost(const PmixHost&) = delete;
  PmixHost& operator=(const PmixHost&) = delete;

  // False, and why.
  bool begin(const PmixStep& step, std::string& why);
  // NAME=value: how this task finds the server. False, and why: without them it would take itself for a job
  // of one rank.
  bool environment_of(int task, std::vector<std::string>& all, std::string& why);
  // Readable: take() has something.
  int fd() const;
  std::vector<PmixMessage> take();
  void hear(const PmixMessage& message);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace ckpt::cluster::srun
