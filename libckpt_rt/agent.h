// The agent: the thread that exists while a request is being served and no longer.
//
// Owner:     libckpt_rt.
// Callers:   request(): the signal handler, or any thread with all signals blocked (the agent inherits
//            the mask of the thread that starts it).
// Requests queue up in a small ring; what does not fit is refused by silence (the asker times out).
#pragma once

#include <cstdint>

#include "base/futex.h"
#include "libckpt_rt/checkpoint.h"

namespace ckpt::agent {

// A request by the program itself (ckpt_rt.h): done is set to 1 and woken when result is complete.
struct OwnRequest {
  FutexWord done{0};
  bool ok = false;
  uint32_t restarted = 0;  // the answer comes in a restarted process: its generation
  CheckpointCost cost;
  Error error;
};

struct Request {
  uint64_t cookie = 0;           // of `ckpt now`/`ckpt stat`; 0: the interval timer or the program
  OwnRequest* own = nullptr;
};

// Queues the request and starts the agent if there is none. False: the queue is full.
bool request(const Request& request);
// Restart, forked child: no agent exists. In a restart the request that the image was taken for is
// answered.
void reset(uint32_t generation);

}  // namespace ckpt::agent
