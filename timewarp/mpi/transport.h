// Messages between processes of one simulation.
//
// Owner:     ckpt_tw_run(); nullptr in Setup for a run of one process.
// Callers:   the one engine thread of the process (a process of a distributed run has one).
// Never:     waits, but at the start and the end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "timewarp/engine/event.h"
#include "timewarp/engine/lp.h"

namespace ckpt::timewarp {

class Worker;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual void send(Worker& worker, Record* cause, double time, uint64_t order, uint32_t sender, uint32_t to,
                    const void* message, size_t bytes) = 0;
  virtual void cancel(Worker& worker, Event* proxy) = 0;
};

}  // namespace ckpt::timewarp
