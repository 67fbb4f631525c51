// Copies of LP states that somebody else makes while the engine's thread goes on: the emulated DMA device, a
// helper thread, or hardware (Santoro and Quaglia, CCL v3.0, sections 3.2 and 3.3).
//
// Owner:     a thread of the engine, or the CCL interface.
// Callers:   that thread only; the copiers have threads of their own behind it.
// Never:     lets a state change under a copy: settle() comes first.
//
//   kNone ──start()──► kQueued ──settle()──► kNone, and the outcome to the caller
//                         └──start() of another copy, monoprogrammed──► kSettled ──settle()──► kNone
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ckpt_timewarp.h"

namespace ckpt::timewarp {

enum class Settled { kComplete, kFinished, kAborted };

// The caller's; must not move between start() and settle().
struct NonBlockingCopy {
  enum class State : uint8_t { kNone, kQueued, kSettled };
  const void* from = nullptr;
  void* to = nullptr;
  uint32_t bytes = 0;
  State state = State::kNone;
  bool must = false;  // may not be given up
  Settled outcome = Settled::kAborted;
  uint64_t ticket = 0;

  bool pending() const { return state != State::kNone; }
};

// Who copies. One of these for each thread.
class BackgroundCopier {
 public:
  virtual ~BackgroundCopier() = default;
  // Queues the copy; false: the queue is full.
  [[nodiscard]] virtual bool start(NonBlockingCopy& copy) = 0;
  // kAborted: less than `percent` was done, nobody touches source and copy any more; 0 never aborts, 101
  // always does. kFinished: the caller's processor has copied the rest.
  virtual Settled settle(NonBlockingCopy& copy, uint32_t percent) = 0;
  // Lets an emulated device that has no thread of its own catch up with the clock.
  virtual void poll() {}
};

std::unique_ptr<BackgroundCopier> make_device_copier(const ckpt_tw_options& options, size_t most_bytes,
                                                     uint32_t most_copies, bool own_thread);
std::unique_ptr<BackgroundCopier> make_helper_copier(uint32_t most_copies);
// nullptr: *why says why.
std::unique_ptr<BackgroundCopier> make_dsa_copier(uint32_t most_copies, std::string* why);

class NonBlocking {
 public:
  NonBlocking(std::unique_ptr<BackgroundCopier> copier, bool mono)
      : copier_(std::move(copier)), mono_(mono) {}

  // Monoprogrammed: first settles the copy that was started last, whosever it is, with this threshold.
  [[nodiscard]] bool start(NonBlockingCopy& copy, double threshold);
  // threshold: 0 to 1, the share that must be done; above 1: given up in any case.
  Settled settle(NonBlockingCopy& copy, double threshold);
  void poll() { copier_->poll(); }

 private:
  std::unique_ptr<BackgroundCopier> copier_;
  const bool mono_;
  NonBlockingCopy* last_ = nullptr;
};

// By options.copier. nullptr: *why says why.
std::unique_ptr<NonBlocking> make_non_blocking(const ckpt_tw_options& options, size_t most_bytes,
                                               uint32_t most_copies, std::string* why);

}  // namespace ckpt::timewarp
