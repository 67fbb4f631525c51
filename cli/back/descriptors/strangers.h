// Callers of the program, from outside of the job, who were accepted in its listening sockets while
// connections of other hosts arrived there: the host's first process keeps them for the program, which
// accepts them as if they had waited (docs/hosts.md, "Not accepted yet").
//
// Owner: cli. Ordinary code, one thread. Callers: job_back.cc and connect_part.cc.
#pragma once

#include <string>
#include <vector>

#include "restart/channels/channel_builder.h"

namespace ckpt::cli {

class Strangers {
 public:
  // kOfLost: without those who called from a host that is lost or left, of whom nothing is true any more.
  // kOfJob: from any host of the job, for all of them go back.
  enum class Without { kOfLost, kOfJob };
  // keeper: the name of that process, as of unaccepted_address(). Read at the end.
  Strangers(const std::string& keeper, Without without) : keeper_(keeper), without_(without) {}
  Strangers(const Strangers&) = delete;
  // Gives them to that process, when the program runs, or is about to. Whom it cannot keep is closed.
  ~Strangers();
  void add(std::vector<ChannelBuilder::Stranger> more);

 private:
  const std::string& keeper_;
  const Without without_;
  std::vector<ChannelBuilder::Stranger> all_;
};

}  // namespace ckpt::cli
