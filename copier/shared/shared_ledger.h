// The ledger of a job's checkpoint: shared memory that several processes write to, each through a mapping
// that it protects by itself. Of each unit, 64 KiB of such memory, the ledger says whether a process may have
// written to it since the stop, and holds the bytes of the stop if so. docs/shared_memory.md has the protocol
// and why it is right.
//
//   kUntouched ──save_for_others()──► saved in slot n
//
// kUntouched: in every member the unit is protected: nobody has changed a byte since the stop.
// saved:      the bytes of the stop lie in a slot of the ledger's file. A member may make the unit writable.
//             There is no way back, and no state between: a member that dies on its way leaves nothing that
//             others wait for.
//
// Owner:     the session of a job's checkpoint (job/session/session.h), in each member; the file belongs to
//            all.
// Callers:   make(), join(): the agent, ahead of the stop. read(), save_for_others(): the agent, the serving
//            thread. give_up(), needed(): also threads of the program that fork. await_change(): the agent,
//            which alone waits, for some milliseconds at a time.
// Never:     locks, allocates; trusts an index that it finds in the file, which any member can write
//            to.
#pragma once

#include <atomic>

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "copier/engines/copy_engine.h"
#include "copier/shared/shared_source.h"

namespace ckpt {

// Shared memory that all members which map it protect: in all of them at the same addresses.
struct LedgerObject {
  uint64_t device, inode;
  uint64_t start, length, offset;  // offset: in the object
  uint64_t first_unit;             // of the ledger
};

struct LedgerSize {
  uint64_t units;
  uint32_t members;  // that will call copied()
  uint32_t objects;
};

class SharedLedger final : public SharedSource {
 public:
  static constexpr uint64_t kUnit = 64 << 10;
  // Memory that ledgers can describe together.
  static constexpr uint64_t kMostUnits = (64ull << 30) / kUnit;
  static uint64_t units_of(AddrRange range) {
    return (range.end.value - 1) / kUnit - range.start.value / kUnit + 1;
  }

  // Address space for the states of all units. False: there is none, and join() will fail.
  [[nodiscard]] bool reserve();
  AddrRange own_range() const { return memory_.range(); }

  // The file of a new ledger; by the process that leads the checkpoint.
  static ScopedFd make(const LedgerSize& size);
  // objects: must stay. False: the file is not as it should be, or cannot be mapped.
  [[nodiscard]] bool join(ScopedFd file, const LedgerSize& size, std::span<const LedgerObject> objects);
  void leave();
  bool joined() const { return head_ != nullptr; }
  std::span<const LedgerObject> objects() const { return objects_; }
  const LedgerObject* find(uint64_t device, uint64_t inode) const;
  void read_by(SourceMemory& memory) { source_ = &memory; }

  bool read(std::byte* to, AddrRange window) override;
  void save_for_others(AddrRange range) override;
  void copied() override;
  bool needed() const override;
  void give_up() override;
  bool given_up() const;
  // Sleeps until the number of members that have not copied all may have changed, 5 ms at most.
  void await_change() const;
  uint64_t units_saved() const { return units_saved_.load(std::memory_order_relaxed); }

 private:
  struct Head {
    std::atomic<uint32_t> reading;    // members that have not copied all; a futex of all processes
    std::atomic<uint32_t> given_up;   // not 0: the checkpoint must not be committed
    std::atomic<uint32_t> next_slot;  // slots that were taken, in vain or not
  };
  // Two members may each take a slot for a unit at the same time; one of them is wasted.
  static uint32_t slots(uint64_t units) { return static_cast<uint32_t>(2 * units + 64); }
  static uint64_t head_bytes(uint64_t units) {
    return (kStates + units * sizeof(uint32_t) + kPageSize - 1) & ~(kPageSize - 1);
  }
  static constexpr uint64_t kStates = 64;  // where the states begin in the file

  std::atomic<uint32_t>& state(uint64_t unit) const { return states_[unit]; }
  template <typename Use>
  bool each_unit(AddrRange range, Use&& use) const;
  bool write_slot(uint32_t slot, AddrRange part, Addr unit);
  bool overlay(std::byte* to, uint32_t slot, AddrRange part, Addr unit) const;

  Arena memory_;
  ScopedFd file_;
  Head* head_ = nullptr;
  std::atomic<uint32_t>* states_ = nullptr;
  LedgerSize size_{};
  std::span<const LedgerObject> objects_;
  SourceMemory* source_ = nullptr;
  bool copied_ = false;  // the agent's: copied() was called
  std::atomic<uint64_t> units_saved_{0};
};

}  // namespace ckpt
