// What the back ends that write-protect memory have in common: memory is protected ahead of the stop, what
// was written since is protected again in it, and all is copied through the pool, while the program runs or,
// in mode standing, before it goes on.
//
// Owner:     run_stages(). Callers: the agent, and the threads that copy, through copier_.
#pragma once

#include <optional>

#include "copier/buffer_pool.h"
#include "copier/copier.h"
#include "copier/engines/dma_copy_engine.h"
#include "copier/filled_queue.h"
#include "libckpt_rt/checkpoint/attempt.h"
#include "libckpt_rt/checkpoint/stages/back_end.h"
#include "libckpt_rt/checkpoint/stages/memory/open_pages.h"
#include "libckpt_rt/checkpoint/stages/writer_thread.h"

namespace ckpt {

// kAllOfMemory: copies never wait for the disk, and are written when all is copied ("large memory" of Li,
// Naughton and Plank).
enum class PoolSize { kAsSet, kAllOfMemory };

struct HowCopied {
  PoolSize pool = PoolSize::kAsSet;
  // All is copied before the threads go on: none waits for a copy (INC of Plank, Li and Puening).
  bool before_go = false;
};

class ProtectingBackEnd : public BackEnd {
 public:
  Result<void> reserve(const Room& room) override;
  Result<void> open_image() override;
  bool copies_in_order() const override { return true; }
  void add_own_ranges() override;
  // A stop as long as the copying is looks at all signals at its beginning.
  bool finds_late_signals() const override { return !copies_before_go_; }
  Result<void> catch_up() override;
  Result<void> finish() override;
  void end() override { writer_.end(); }
  void release_buffers() override;

 protected:
  template <typename Memory>
  ProtectingBackEnd(Attempt& attempt, const HowCopied& how, Memory& memory, Arming& arming,
                    SegmentTable& table)
      : attempt_(attempt),
        pool_size_(how.pool),
        copies_before_go_(how.before_go),
        memory_(memory),
        source_(memory),
        arming_(arming),
        table_(table),
        copier_(table, pool_, queue_, memory) {}
  ~ProtectingBackEnd() = default;

  // While the program runs: protects in passes, then gets ready.
  Result<void> protect_ahead();
  // The last thing in the stop: what was written since it was protected is protected again.
  Result<void> settle_protection();
  Result<void> get_all_ready() { return attempt_.get_ready(writer_.helper()); }
  // The buffers into which the agent's copies are made the cheaper way (KernelCopy::use_for).
  AddrRange filled_from_own_side() const;
  // A thread that was sent a signal while it stood; see StopWorld::signalled_late.
  int ask_for_late_signal() const;
  // About as much memory will be copied.
  uint64_t expected_bytes() const;

  // What protect_ahead() asks of the back end, in this order; renew_table() and check_table() only in its
  // first round, offer_shared() only in its second.
  // A call that changes mappings did not end: may protection begin in the stop instead?
  virtual Result<void> mappings_in_motion(int) { return {}; }
  virtual Result<void> accept(const MemoryMap&) { return {}; }
  virtual void leave_out(std::span<Mapping>) {}
  virtual Result<void> renew_table(std::span<const Mapping>) { return {}; }
  virtual Result<void> check_table() { return {}; }
  // Memory that other members of the job map: is it tracked (MemoryMap::track_shared_of_job)? offer_shared():
  // the mappings that were armed last.
  virtual bool tracks_shared() const { return false; }
  virtual Result<void> offer_shared(std::span<const Mapping>) { return {}; }

  // In the stop. Of what was offered the rest becomes kEager.
  virtual Result<void> agree_on_shared(std::span<Mapping>) { return {}; }
  // The page is about to lose its protection.
  virtual void save_for_others(Addr) {}

  // Threads still stand: from now on faults and events go to the copier.
  virtual void serve_copier() {}

  // What finish() asks. Threads still stand.
  virtual void before_go() {}
  // This process has copied all, or has lost memory. Returns when no member needs what others protect for it.
  virtual Result<void> await_sharers(bool) { return {}; }
  // All is copied, or lost: takes protection off, or leaves it to the watch. Nobody copies any more when it
  // returns.
  virtual Result<void> after_copying() = 0;
  virtual int late_signal() = 0;
  // Pages that are as in the parent.
  virtual Result<void> list_inherited(ArenaVector<AddrRange>&) { return {}; }

  Attempt& attempt_;
  PoolSize pool_size_;
  const bool copies_before_go_;
  ArmedMemory& memory_;    // the same memory: to be protected,
  ProgramMemory& source_;  // and to be copied
  Arming& arming_;
  SegmentTable& table_;
  BufferPool pool_;
  FilledQueue queue_;
  uint64_t planned_bytes_ = 0;  // of memory: what was to be copied as the stop left it
  Copier copier_;
  WriterThread writer_{{attempt_.eager, queue_, pool_, attempt_.image.sink()}};
  OpenPages open_pages_;
  uint64_t faults_ahead_ = 0;

 private:
  bool reserve_pool(uint64_t bytes, uint64_t segment);
  // One round of protect_ahead(). False: protection begins in the stop.
  Result<bool> add_memory(int round, MemoryMap& now);
  Result<void> release_open_pages(ArenaVector<AddrRange>& runs);
  void release_excluded();
  static void buffer_released(void* self, uint32_t buffer);
  bool start_engine();
  bool writes_at_once() const;
  void plan();
  uint64_t copied_bytes();
  void limit_copies_ahead();
  bool copy_all();
  Error memory_went();
  Error signalled_late(int late);
  void count();
  void choose_next_segment();

  std::optional<DmaCopyEngine> engine_;
};

}  // namespace ckpt
