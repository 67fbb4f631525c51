// Fault back end in-thread: a userfaultfd with UFFD_FEATURE_SIGBUS. It is in the program's descriptor table,
// at a high number, as long as the guard is open: the thread that faults unprotects by it.
//
// Owner:     one checkpoint. Callers: as of GuardedMemory.
#pragma once

#include "base/raii_fd.h"
#include "libckpt_rt/guard/guarded_memory.h"

namespace ckpt {

class InThreadMemory final : public GuardedMemory {
 public:
  const char* name() const override;
  bool can_protect_ahead() const override;
  Result<void> open_stopped(bool ahead, ThreadSlot* thread, Arena& arena) override;
  int descriptor() const override { return program_fd_; }
  // Whole mappings.
  long add(AddrRange range) override;
  // Whatever it returns, no registered page of the range is protected then.
  long unprotect(AddrRange range) override;
  void remove(AddrRange range) override;
  void end_stopped(ThreadSlot* thread) override;
  guard::Faults faults() const override;
  bool cuts_mappings() const override { return false; }

 private:
  long change(AddrRange range, bool writable) const override;
  Result<bool> take(const Mapping& m) override { return add(m.range) == 0; }

  int program_fd_ = -1;
  ScopedFd agent_fd_;  // the same userfaultfd in the agent's table
};

}  // namespace ckpt
