// Who is saved together with this process.
//
// Owner:     DescriptorCapture. Callers: the agent.
#pragma once

#include <span>

#include "base/result.h"
#include "job/format/wire.h"

namespace ckpt {

struct Partners {
  // The job has members on other hosts: it is called when all that was sent to them has arrived, and returns
  // when that is so everywhere.
  using Drained = Result<void> (*)(std::span<const job::Bookmark> connections);

  bool any = false;           // the other ends of pipes and sockets may be in other processes that are saved
  Drained drained = nullptr;  // nullptr: all are on this host
  bool over_hosts() const { return drained != nullptr; }
};

}  // namespace ckpt
