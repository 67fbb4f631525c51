// Write protection of the program's memory whose faults are handled by the threads that write, under the
// guard (guard.h). Each way to protect is a class: InThreadMemory (in_thread_memory.h) by userfaultfd,
// MprotectMemory (mprotect_memory.h) by mprotect.
//
// mprotect protects in the stop, in-thread ahead of it where the kernel protects holes (Linux 6.4). From the
// stop on nothing is ever protected again before the next; ahead of it, only under a lock
// (docs/fault_back_ends.md). Both may be used under the guard only.
//
// Owner:     one checkpoint.
// Callers:   unprotect, read: also threads of the program, in handlers; turn(), crowd(), protections(): the
//            same, ahead of the stop. The rest: the agent.
// Never:     holds the lock across anything but protecting, unprotecting and the table of segments.
#pragma once

#include "base/locks/crowd_gate.h"
#include "base/locks/turn_lock.h"
#include "base/memory/arena.h"
#include "base/result.h"
#include "copier/copier.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/core/kernel/kernel_copy.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/protect/armed_memory.h"

namespace ckpt {

struct ThreadSlot;

class GuardedMemory : public ProgramMemory, public ArmedMemory {
 public:
  // As the setting names it.
  virtual const char* name() const = 0;
  virtual bool can_protect_ahead() const { return false; }
  // In a stop. thread: the first of those that stand.
  virtual Result<void> open_stopped(bool ahead, ThreadSlot* thread, Arena& arena);
  bool is_open() const { return open_; }
  // The descriptor in the program's table, or -1.
  virtual int descriptor() const { return -1; }
  // Mappings that other processes write to, or that only /proc/self/mem can read, become kEager.
  static void leave_out(std::span<Mapping> map);
  // In the stop: what cannot be protected becomes kEager.
  Result<void> add_stopped(std::span<Mapping> map);
  // A part of one mapping that was added. If it fails, nothing of the part is protected.
  long protect(AddrRange range) override;
  // Ahead of the stop: pages that must never be protected.
  [[nodiscard]] bool leave_open(Addr page) { return open_pages_.push_back(page); }
  // Threads of the program go through crowd() first.
  using Turn = TurnLock<LockRank::kTurn>;
  using Crowd = CrowdGate<LockRank::kCrowd>;
  Turn& turn() { return turn_; }
  Crowd& crowd() { return crowd_; }
  // How often something was protected.
  uint64_t protections() const { return protections_.load(std::memory_order_relaxed); }
  // Where cuts_mappings() is false: nothing of this whole mapping is protected any more, the kernel takes it
  // for ordinary memory again.
  virtual void remove(AddrRange) {}
  // The agent's copies into these buffers are made the cheaper way (KernelCopy::use_for).
  void copy_into(AddrRange buffers) { copy_.use_for(buffers); }
  // In the next stop. thread: the first of those that stand.
  virtual void end_stopped(ThreadSlot*) { open_ = false; }

  virtual guard::Faults faults() const = 0;
  // Protection cuts mappings, and what it took from them is known by the table of segments alone.
  virtual bool cuts_mappings() const = 0;
  // Does vm.max_map_count leave room for so many protected pieces, if they cut mappings?
  virtual bool has_room_for(size_t, size_t) const { return true; }

  long read(std::byte* to, Addr from, size_t bytes, bool readable) override;
  long read_pieces(std::span<const CopyPiece> pieces, bool readable) override;
  long unprotect(AddrRange range) override = 0;
  long unprotect_many(AddrRange range) override;
  void wake(AddrRange) override {}
  void serve_waiting() override { turn_.yield(); }
  size_t batch() const override { return 8; }
  bool kernel_waits() const override { return false; }
  void each_busy(void (*visit)(void*, AddrRange), void* context) override;

 protected:
  GuardedMemory() = default;
  ~GuardedMemory() = default;
  static bool is_agent();
  virtual long change(AddrRange range, bool writable) const = 0;
  // In the stop: the mapping will be protected. False: it cannot be.
  virtual Result<bool> take(const Mapping& m) = 0;

 private:
  void begin_serving(Served) override { turn_.lock(); }
  void end_serving() override { turn_.unlock(); }

  KernelCopy copy_;
  bool open_ = false;
  Turn turn_;
  Crowd crowd_;
  std::atomic<uint64_t> protections_{0};  // changed with the lock
  ArenaVector<Addr> open_pages_;
};

}  // namespace ckpt
