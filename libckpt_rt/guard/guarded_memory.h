// Protection whose faults are handled by the thread that writes: the fault back ends in-thread and mprotect.
//
//   in-thread   a userfaultfd with UFFD_FEATURE_SIGBUS. It is in the program's descriptor table, at a high
//               number, as long as the guard is open: the thread that faults unprotects by it.
//   mprotect    PROT_WRITE is taken away from mappings and given back piece by piece.
//
// mprotect protects in the stop, in-thread ahead of it where the kernel protects holes (Linux 6.4). From the
// stop on nothing is ever protected again before the next; ahead of it, only under a lock
// (docs/fault_back_ends.md). Both may be used under the guard only (guard.h).
//
// Owner:     one checkpoint.
// Callers:   unprotect, read: also threads of the program, in handlers; turn(), crowd(), protections(): the
//            same, ahead of the stop. The rest: the agent.
// Never:     holds the lock across anything but protecting, unprotecting and the table of segments.
#pragma once

#include "base/locks/crowd_gate.h"
#include "base/locks/turn_lock.h"
#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "base/settings/settings.h"
#include "copier/copier.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/core/kernel/kernel_copy.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/protect/armed_memory.h"

namespace ckpt {

struct ThreadSlot;

class GuardedMemory final : public ProgramMemory, public ArmedMemory {
 public:
  static bool can_protect_ahead(FaultBackEnd back_end);
  // In a stop. thread: the first of those that stand.
  Result<void> open_stopped(FaultBackEnd back_end, bool ahead, ThreadSlot* thread, Arena& arena);
  bool is_open() const { return open_; }
  // The descriptor in the program's table, or -1.
  int descriptor() const { return program_fd_; }
  // Mappings that other processes write to, or that only /proc/self/mem can read, become kEager.
  static void leave_out(std::span<Mapping> map);
  // In the stop: what cannot be protected becomes kEager.
  Result<void> add_stopped(std::span<Mapping> map);
  // Whole mappings.
  long add(AddrRange range) override;
  // A part of one mapping that was added. If it fails, nothing of the part is protected.
  long protect(AddrRange range) override;
  // Ahead of the stop: pages that must never be protected.
  [[nodiscard]] bool keep_open(Addr page) { return open_pages_.push_back(page); }
  // Threads of the program go through crowd() first.
  TurnLock& turn() { return turn_; }
  CrowdGate& crowd() { return crowd_; }
  // How often something was protected.
  uint64_t protections() const { return protections_.load(std::memory_order_relaxed); }
  // Where cuts_mappings() is false: nothing of this whole mapping is protected any more, the kernel takes it
  // for ordinary memory again.
  void remove(AddrRange range);
  // The agent's copies into these buffers are made the cheaper way (KernelCopy::use_for).
  void copy_into(AddrRange buffers) { copy_.use_for(buffers); }
  // In the next stop. thread: the first of those that stand.
  void end_stopped(ThreadSlot* thread);

  guard::Faults faults() const;
  // mprotect cuts mappings, and what it took from them is known by the table of segments alone.
  bool cuts_mappings() const { return back_end_ == FaultBackEnd::kMprotect; }
  // Does vm.max_map_count leave room for so many protected pieces, if they cut mappings?
  bool has_room_for(size_t runs, size_t mappings) const;

  long read(std::byte* to, Addr from, size_t bytes, bool readable) override;
  long read_pieces(std::span<const CopyPiece> pieces, bool readable) override;
  // In-thread: whatever it returns, no registered page of the range is protected then.
  long unprotect(AddrRange range) override;
  long unprotect_many(AddrRange range) override;
  // By mprotect: the program may have taken the right to write since, and would get it back.
  bool may_unprotect_late() const override { return back_end_ != FaultBackEnd::kMprotect; }
  void wake(AddrRange) override {}
  void serve_waiting() override { turn_.yield(); }
  size_t batch() const override { return 8; }
  bool kernel_waits() const override { return false; }
  void each_busy(void (*visit)(void*, AddrRange), void* context) override;

 private:
  void begin_serving(Served) override { turn_.lock(); }
  void end_serving() override { turn_.unlock(); }
  struct Part {
    AddrRange range;
    uint32_t prot;
  };
  Result<void> open_userfaultfd_of(ThreadSlot* thread, bool ahead);
  long change(AddrRange range, bool writable) const;

  FaultBackEnd back_end_ = FaultBackEnd::kHandler;
  int program_fd_ = -1;
  ScopedFd agent_fd_;  // the same userfaultfd in the agent's table
  KernelCopy copy_;
  ArenaVector<Part> parts_;  // of mprotect, in address order
  bool open_ = false;
  TurnLock turn_;
  CrowdGate crowd_;
  std::atomic<uint64_t> protections_{0};  // changed with the lock
  ArenaVector<Addr> open_pages_;
};

}  // namespace ckpt
