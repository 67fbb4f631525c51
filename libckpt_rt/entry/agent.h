// The agent: the thread that exists while a request is being served and, unless it keeps a watch (watch.h),
// no longer.
//
// Owner:     libckpt_rt.
// Callers:   begin_absence(), end_absence(): any thread of the program.
//            request(): the signal handler, or any thread with all signals blocked (the agent inherits
//            the mask of the thread that starts it).
// Requests queue up in a small ring. A request that does not fit, or finds no thread to serve it, is counted
// as failed with its reason; the asker is not told, it times out.
#pragma once

#include "libckpt_rt/checkpoint/requests.h"

namespace ckpt::agent {

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

}  // namespace ckpt::agent
