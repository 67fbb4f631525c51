// Memory is protected so that the thread that writes handles its fault itself, under the guard: fault back
// ends in-thread and mprotect (docs/fault_back_ends.md, guard.h, guarded_memory.h), which differ in their
// memory alone.
//
// The guard is opened in a short stop ahead of the image's where memory can be protected ahead, else in the
// image's stop; it is closed in a stop of its own when all is copied.
//
// Owner:     run_stages(). Callers: the agent.
#pragma once

#include "libckpt_rt/checkpoint/back_ends/protecting.h"
#include "libckpt_rt/guard/in_thread_memory.h"
#include "libckpt_rt/guard/mprotect_memory.h"

namespace ckpt {

class GuardBackEnd : public ProtectingBackEnd {
 public:
  Result<void> open(const Room& room) override;
  const char* why_no_increments() const override;
  void add_own_ranges() override;
  Result<void> get_ready() override;
  bool protects_ahead() const override { return open_; }
  bool stood_in_vain(ThreadSlot* first) override;
  void threads_stand(ThreadSlot* first) override;
  Result<void> capture_memory() override;
  void release_faults() override;

 protected:
  GuardBackEnd(Attempt& attempt, const HowCopied& how, GuardedMemory& memory, Arming& arming)
      : ProtectingBackEnd(attempt, how, memory, arming, attempt.watch.table), guarded_(memory) {}
  ~GuardBackEnd() = default;

 private:
  Error refuse(const char* why);
  Result<void> open_ahead();
  Result<void> open_ahead_stopped(ThreadSlot* first);
  bool leave_open(const ThreadSlot* stopped);
  // give_up: memory is protected in the stop after all, and nothing of it is protected any more.
  void leave_stopped(ThreadSlot* first, bool give_up);
  Result<void> capture_in_stop();
  Result<void> copy_open_segments();
  Result<void> protect_table();
  void take_registration_off();
  void close();
  bool close_in_a_stop(bool log_failure);

  Result<void> accept(const MemoryMap& now) override;
  void leave_out(std::span<Mapping> map) override { GuardedMemory::leave_out(map); }
  Result<void> after_copying() override;
  int late_signal() override { return late_; }

  GuardedMemory& guarded_;
  Arena arena_;  // the lists of protection
  Arena
      closing_;  // lists of the stop that closes the guard: that stop must not fail for want of address space
  bool ahead_ = false;        // memory is protected ahead of the stop
  bool open_ = false;         // the guard
  bool copies_ = false;       // from the stop on, what is written to is copied
  int64_t opened_in_ns_ = 0;  // the stop that opened the guard ahead
  int late_ = 0;
};

// These are constructed before the back end, which refers to them.
template <typename Memory>
struct GuardedParts {
  explicit GuardedParts(Attempt& attempt) : arming(memory, attempt.capture.pages, attempt.watch.table) {}
  Memory memory;
  Arming arming;
};

template <typename Memory>
class GuardBackEndBy final : private GuardedParts<Memory>, public GuardBackEnd {
 public:
  GuardBackEndBy(Attempt& attempt, const HowCopied& how)
      : GuardedParts<Memory>(attempt),
        GuardBackEnd(attempt, how, GuardedParts<Memory>::memory, GuardedParts<Memory>::arming) {}
};
using InThreadBackEnd = GuardBackEndBy<InThreadMemory>;
using MprotectBackEnd = GuardBackEndBy<MprotectMemory>;

}  // namespace ckpt
