// The agent: the thread that exists while a request is being served and, unless it keeps a watch (watch.h),
// no longer.
//
// Owner:     libckpt_rt.
// Callers:   begin_absence(), end_absence(): any thread of the program.
//            request(): the signal handler, or any thread with all signals blocked (the agent inherits
//            the mask of the thread that starts it).
// Requests queue up in a small ring. What does not fit, or finds no thread to serve it, is counted as
// failed with its reason; the asker is not told, it times out.
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
  Error error;
};

struct Request {
  uint64_t cookie = 0;  // of `ckpt now`/`ckpt stat`; 0: the interval timer or the program
  OwnRequest* own = nullptr;
  // The signal of kill(2) carries no cookie. If an asker without a cookie waits (base/protocol/control_protocol.h),
  // it is taken for the sender.
  bool without_cookie = false;
  bool checkpoint = true;  // without_cookie: take a checkpoint when no asker waits
  int moves_signal = 0;    // not 0: no checkpoint, but another signal than this one (moved_signal.h)
};

// A cookie that asks for nothing: starts an agent if requests wait and none runs.
inline constexpr uint64_t kStartAgent = 1;
// Queues the request and starts the agent if there is none. False: it was refused, and counted.
bool request(Request request);
// For the agent that waits for another process: answers those members of the job that want us in their
// checkpoint. False: the job is to go back (docs/back.md), and the agent must not wait.
bool serve_joins();
// Between the two no thread of ours exists, for calls that only a program of one thread may make (unshare,
// setns). begin_absence() waits for what is under way; requests that come meanwhile are served afterwards.
void begin_absence();
void end_absence();
// In a child: the parent had no agent, and no request waited.
bool is_idle();
// Restart, forked child: no agent exists. In a restart the program's own requests are answered: the one that the
// image was taken for, and those that waited.
void reset(uint32_t generation);
// Around putting the program's memory back while the agent runs (docs/back.md): what is waiting stays, and
// the program's own requests of the checkpoint are answered. Called by the agent, the program's threads parked.
struct WaitingRequests {
  Request ring[16];
  uint32_t head, count;
};
void save_requests(WaitingRequests& saved);
void put_back_requests(const WaitingRequests& saved, uint32_t generation);

}  // namespace ckpt::agent
