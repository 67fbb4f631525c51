// A process that is stopped, while it is asked: a thread of this command lets the library's code run in it,
// and nothing else (base/tracing/stopped_tracer.h).
//
// Owner:     cli. Callers: ask(). It is as it was before when the object is gone.
#pragma once

#include <memory>
#include <thread>

#include "base/result.h"
#include "base/tracing/tracer_orders.h"
#include "cli/ask/target.h"

namespace ckpt::cli {

class StoppedTarget {
 public:
  StoppedTarget();
  ~StoppedTarget();
  StoppedTarget(const StoppedTarget&) = delete;
  StoppedTarget& operator=(const StoppedTarget&) = delete;

  Result<void> seize(const Target& target);
  // The signal by which it is stopped; 0: it was continued.
  int stop_signal(const Target& target);

 private:
  long give(TracerOrders::What what, const Target* target);

  std::unique_ptr<std::byte[]> memory_;
  TracerOrders orders_;
  std::atomic<int> tid_{0};
  std::thread thread_;
};

}  // namespace ckpt::cli
