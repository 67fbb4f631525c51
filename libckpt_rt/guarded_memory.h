// Protection whose faults are handled by the thread that writes: the fault back ends in-thread and mprotect.
//
//   in-thread   a userfaultfd with UFFD_FEATURE_SIGBUS. It is in the program's descriptor table, at a high
//   number, as
//               long as the guard is open: the thread that faults unprotects by it.
//   mprotect    PROT_WRITE is taken away from mappings and given back piece by piece.
//
// Memory is protected in the stop and nothing is ever protected again before the next, so there is no race
// between protecting and writing. Both may be used under the guard only (guard.h).
//
// Owner:     one checkpoint.
// Callers:   begin_stopped, protect, end_*: the agent. unprotect, read: also threads of the program, in
// handlers. Never:     allocates after begin_stopped.
#pragma once

#include "base/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "base/settings.h"
#include "copier/copier.h"
#include "libckpt_rt/guard.h"
#include "libckpt_rt/memory_map.h"

namespace ckpt {

struct ThreadSlot;

class GuardedMemory final : public ProgramMemory {
 public:
  // In the stop. What cannot be protected becomes kEager. thread: one of the program's that stands.
  Result<void> begin_stopped(FaultBackEnd back_end, ThreadSlot* thread, Arena& arena, std::span<Mapping> map);
  // Part of one mapping of those.
  long protect(AddrRange range);
  // Nothing is protected any more: the kernel takes it for ordinary memory again.
  void end_running();
  // In the next stop.
  void end_stopped(ThreadSlot* thread);

  guard::Faults faults() const;
  // mprotect cuts mappings: does vm.max_map_count leave room for so many protected pieces?
  static bool has_room_for(size_t runs, size_t mappings);

  long read(std::byte* to, Addr from, size_t bytes, bool readable) override;
  long unprotect(AddrRange range) override;
  long unprotect_many(AddrRange range) override;
  // By mprotect: the program may have taken the right to write since, and would get it back.
  bool may_unprotect_late() const override { return back_end_ != FaultBackEnd::kMprotect; }
  long still_protected(AddrRange) override { return -1; }
  void wake(AddrRange) override {}

 private:
  struct Part {
    AddrRange range;
    uint32_t prot;
  };
  Result<void> open_userfaultfd_of(ThreadSlot* thread);
  long change(AddrRange range, bool writable) const;

  FaultBackEnd back_end_ = FaultBackEnd::kHandler;
  int program_fd_ = -1;
  ScopedFd agent_fd_;        // the same userfaultfd in the agent's table
  ArenaVector<Part> parts_;  // in address order
};

}  // namespace ckpt
