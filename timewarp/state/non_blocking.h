// Copies of LP states that somebody else makes while the engine's thread goes on: by the emulated DMA device, by a
// helper thread, or by hardware (Santoro and Quaglia, CCL v3.0, sections 3.2 and 3.3).
//
// Owner:     a thread of the engine, or the CCL interface.
// Callers:   that thread only; the copiers have threads of their own behind it.
// Never:     lets a state change under a copy: settle() comes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ckpt_timewarp.h"

namespace ckpt::timewarp {

struct NonBlockingCopy {
  void* to = nullptr;
  uint32_t bytes = 0;
  uint64_t ticket = 0;
  bool pending = false;  // queued, not settled
};

enum class Settled { kComplete, kFinished, kAborted };

class NonBlocking {
 public:
  virtual ~NonBlocking() = default;
  // Queues the copy; false: the queue is full.
  [[nodiscard]] virtual bool start(NonBlockingCopy& copy, const void* from) = 0;
  // kAborted: less than `threshold` (0 to 1) was done, nobody touches source and copy any more. kFinished: the caller
  // has copied the rest.
  virtual Settled settle(NonBlockingCopy& copy, double threshold) = 0;
  // Lets an emulated device that has no thread of its own catch up with the clock.
  virtual void poll() {}
};

// nullptr: *why says why.
std::unique_ptr<NonBlocking> make_non_blocking(const ckpt_tw_options& options, size_t most_bytes,
                                               uint32_t most_copies, std::string* why);

}  // namespace ckpt::timewarp
