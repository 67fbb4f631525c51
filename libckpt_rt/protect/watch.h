// What protects memory, from before one checkpoint until after it, or until the next: the userfaultfd with
// the thread that serves it, the table of segments, and the image that an increment would build on.
//
// With increments (CKPT_INCREMENTS) a watch is kept between checkpoints, and with it two threads of ours: the
// one that serves faults and the agent, whose descriptor table the userfaultfd is in. Memory that is not
// written stays protected; a write costs one fault for a segment. Without increments nothing is kept.
//
// Owner:     the checkpoint under way; between checkpoints the library.
// Callers:   the agent.
// Memory:    a watch lies in a mapping of its own, which is neither saved nor inherited by children: a
//            restarted process has none.
#pragma once

#include "image/format/image_format.h"
#include "libckpt_rt/protect/arming.h"
#include "libckpt_rt/protect/spare_memory.h"
#include "libckpt_rt/protect/write_protect.h"

namespace ckpt {

class Watch {
 public:
  // The kept watch, else a new one. nullptr: no address space left.
  static Watch* take();
  static bool is_kept();
  // Ends the kept watch, if there is one.
  static void end_kept();
  // Of the kept watch, if there is one: its spare memory is made ready for the next checkpoint, or given
  // back.
  static void clean_spare();
  static void release_spare();
  // Restart, forked child: there is none.
  static void forget_kept();

  void become_kept();
  // Takes all protection off; *this is gone.
  void end();

  // A checkpoint begins. The first one opens the userfaultfd and starts the thread that serves it.
  // list_bytes: room for segments and the lists of pages.
  Result<void> begin(RawThread& handler, CopyCounters& counters, uint64_t segment_bytes, uint64_t list_bytes);
  // Protection can be asked for: without that nothing is worth keeping.
  bool can_be_kept() const { return can_be_kept_; }
  // Has been through a checkpoint.
  bool is_renewed() const { return checkpoints_ > 1; }
  // Of a watch that is_renewed(): see Arming. Then the former checkpoint's lists are of no use any more; what
  // the program maps in their place when they are released must not be taken for ours.
  Result<void> renew(std::span<const Mapping> map, bool full);
  Arena& former_lists() { return arenas_[(checkpoints_ + 1) % 2]; }
  // All is copied: what comes now is kept track of for the next checkpoint. Waits for nothing but the thread
  // that serves.
  Result<void> resume();

  // Where memory is looked up, see PageScan: the list as it is, until another is named.
  void look_up_in(const MemoryMap* map) { pages_.look_up_in(map); }
  // /proc/self/pagemap; -1 before begin().
  int pagemap() const { return pages_.descriptor(); }
  // Ranges that are ours.
  void own_ranges(ArenaVector<AddrRange>& own) const;

  SpareMemory spare;
  SegmentTable table;
  WriteProtection protection;
  Arming arming;
  // The image that holds what is in_parent; all zero: none.
  ParentImage parent{};
  uint64_t image_bytes = 0;  // memory in it; 0: there is none

 private:
  Watch() : arming(protection, pages_, table) {}

  Arena arenas_[2];  // of this checkpoint's table and of the former one's, by turns
  Arena scratch_;
  PageScan pages_;
  uint32_t checkpoints_ = 0;
  bool can_be_kept_ = false;
};

}  // namespace ckpt
