// Requests that wait for the agent, which entry/agent.h starts and runs.
//
// Owner:     libckpt_rt. Callers: entry/agent.cc, which alone queues and serves; reset() and what follows:
//            see there.
#pragma once

#include <cstdint>

#include "base/locks/futex.h"
#include "libckpt_rt/checkpoint/checkpoint.h"

namespace ckpt::agent {

// A request by the program itself (ckpt_rt.h): done is set to 1 and woken when result is complete.
struct OwnRequest {
  FutexWord done{0};
  bool ok = false;
  uint32_t restarted = 0;  // the answer comes in a restarted process: its generation
  CheckpointCost cost;
  Error error;  // not ok; or ok, with a text: why no restart of the checkpoint can be
};

struct Request {
  uint64_t cookie = 0;  // of `ckpt now`/`ckpt stat`; 0: the interval timer or the program
  OwnRequest* own = nullptr;
  // The signal of kill(2) carries no cookie. If an asker without a cookie waits
  // (base/protocol/control_protocol.h), it is taken for the sender.
  bool without_cookie = false;
  bool checkpoint = true;  // without_cookie: take a checkpoint when no asker waits
  int moves_signal = 0;    // not 0: no checkpoint, but another signal than this one (moved_signal.h)
};

inline constexpr uint32_t kRing = 16;

struct Queue {
  FutexLock<LockRank::kRequests>
      lock;  // of all here and of AgentWords; held for as long as it takes to start the agent, with all
             // signals blocked
  Request ring[kRing];
  uint32_t head = 0;
  bool waiting = false;             // the agent has nothing to do but to keep a watch
  OwnRequest* answering = nullptr;  // the request being served; in an image: the one it was taken for
};
extern Queue queue;
// The part that a child looks at.
struct AgentWords {
  uint32_t count = 0;  // of requests in the ring
  bool running = false;
  uint32_t absences = 0;  // not 0: an agent that is there leaves, none is started
};
extern AgentWords words;

// In a child: the parent had no agent, and no request waited.
bool is_idle();
// Restart, forked child: no agent exists. In a restart the program's own requests are answered: the one that
// the image was taken for, and those that waited.
void reset(uint32_t generation);
// Around putting the program's memory back while the agent runs (docs/back.md): what is waiting stays, and
// the program's own requests of the checkpoint are answered. Called by the agent, the program's threads
// parked.
struct WaitingRequests {
  Request ring[kRing];
  uint32_t head, count;
};
void save_requests(WaitingRequests& saved);
void put_back_requests(const WaitingRequests& saved, uint32_t generation);

}  // namespace ckpt::agent
