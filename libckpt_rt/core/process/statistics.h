// What became of the checkpoints of this process so far.
//
// Owner:     libckpt_rt: one object under a lock of its own (leaf), in the library's data, so that an image
//            holds it.
// Callers:   count: the agent, and a thread that refuses a request; read: the agent. All signals blocked.
// Never:     takes another lock, waits longer than for a few instructions.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace ckpt {

struct Statistics {
  uint64_t checkpoints = 0, failures = 0;
  int64_t total_pause_ns = 0, longest_pause_ns = 0;
  int64_t processor_ns = 0;  // of our threads in checkpoints that succeeded
  char last_image[1200] = {};
  char last_error[320] = {};
};

namespace statistics {

// image: absolute path.
void count_success(int64_t pause_ns, int64_t processor_ns, const char* image);
void count_failure(const Error& error);
// Of a checkpoint that was taken, and that no restart can use.
void set_last_error(const Error& error);
Statistics read();
// Going back: the figures are of now, not of the checkpoint.
void put_back(const Statistics& all);
// A forked child begins with none. After a restart the figures go on; nobody holds the lock.
void reset_in_child();
void reset_after_restart();

}  // namespace statistics
}  // namespace ckpt
