// Fault back end mprotect: PROT_WRITE is taken away from mappings and given back piece by piece.
//
// Owner:     one checkpoint. Callers: as of GuardedMemory.
#pragma once

#include "libckpt_rt/guard/guarded_memory.h"

namespace ckpt {

class MprotectMemory final : public GuardedMemory {
 public:
  const char* name() const override;
  Result<void> open_stopped(bool ahead, ThreadSlot* thread, Arena& arena) override;
  // Nothing is added ahead of the stop.
  long add(AddrRange range) override;
  long unprotect(AddrRange range) override { return change(range, true); }
  // The program may have taken the right to write since, and would get it back.
  bool may_unprotect_late() const override { return false; }
  guard::Faults faults() const override;
  bool cuts_mappings() const override { return true; }
  bool has_room_for(size_t runs, size_t mappings) const override;

 private:
  struct Part {
    AddrRange range;
    uint32_t prot;
  };
  long change(AddrRange range, bool writable) const override;
  Result<bool> take(const Mapping& m) override;

  ArenaVector<Part> parts_;  // in address order
};

}  // namespace ckpt
