// The listening sockets of this process while its job holds connect (connecting.h).
//
// Owner:     job. Callers: the agent.
#pragma once

#include <cstdint>
#include <span>

#include "libckpt_rt/capture/sockets/listening.h"

namespace ckpt::job {

// Waits for so long. False: nothing is to be waited for any more.
using Pause = bool (*)(void* argument, int64_t ns);
bool pause_asleep(void*, int64_t ns);

class Servers {
 public:
  // descriptors: of this process, as they were a moment ago.
  Servers(std::span<const CapturedDescriptor> descriptors, Pause pause, void* argument)
      : descriptors_(descriptors), pause_(pause), argument_(argument) {}

  // Holds connect. A process that listens takes first what waits in it, as long as others are held and it is
  // not: it may have to connect to somebody for that. False: it listens nowhere.
  static constexpr int64_t kOthersFirstNs = 300'000'000;
  bool hold_in_turn(int64_t others_first_ns = kOthersFirstNs);
  // Until nothing of what waits now in this process is left that a checkpoint cannot have, or kMostNs have
  // gone since connecting::hold(). What clients outside of the job send meanwhile is not waited for.
  void await_accepted();

 private:
  void wait_until_taken(int64_t until_ns);

  const std::span<const CapturedDescriptor> descriptors_;
  const Pause pause_;
  void* const argument_;
};

}  // namespace ckpt::job
