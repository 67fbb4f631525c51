// One checkpoint as it is asked for: of the job where there is more than one process, else of this process.
//
// Owner:     job. Callers: the agent, one checkpoint at a time.
#pragma once

#include <cstdint>

#include "base/protocol/control_protocol.h"
#include "base/result.h"
#include "libckpt_rt/checkpoint/checkpoint.h"

namespace ckpt::job {

// What the asker wants, and what it is told of a job.
struct TakeOptions {
  bool only = false;         // this process alone, whatever else is in the job
  char leave_out[512] = {};  // processes without the library that need not be saved, besides CKPT_LEAVE_OUT
  int asker = -1;            // the socket of whoever waits for the answer; -1: nobody
  // Other hosts take part: the asker (the host agent) hears of each step here, and says how it goes on.
  int hosts_socket = -1;
  HostsPart part = {};
  bool over_hosts() const { return hosts_socket >= 0; }
};
struct TakeReport {
  uint32_t members = 0;  // images; 0: of one process, as without jobs
  uint32_t left_out = 0, ended = 0;
  uint32_t attempts = 0;
  int64_t pause_ns = 0;  // from the first thread stopped anywhere to the last that went on
  char path[1400] = {};  // of the checkpoint's directory
  // Why no restart of it can be: of the first member of which that is so. Empty: none. Over several hosts: of
  // this one.
  char why_not_restartable[320] = {};
};
// On failure everything runs on and the newest checkpoint is as it was. serve_joins: answers other members
// that want us in their checkpoint; called while we wait for the lock of the directory. serve_joins returns
// false when the job is to go back: then take() gives up.
Result<CheckpointCost> take(const TakeOptions& options, TakeReport& report, bool (*serve_joins)());

// An agent that was asked to join: base/protocol/control_protocol.h, kJoin. `socket` leads to the
// coordinator.
void serve_join(int socket);

}  // namespace ckpt::job
