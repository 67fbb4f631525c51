// The segments of one checkpoint and the state machine that decides who copies each of them, once.
//
// Owner:     copier. Built by the agent while threads stand still; afterwards shared by
//            - the copier (agent thread) in its sequential scan,
//            - the fault handler thread, for forced copies,
//            - threads of the program that are about to give memory back (release guard).
// Never:     a segment is copied twice, or written by the program before it was copied.
//
//   kProtected ──claim()──► kCopying ──saved()──► kSaved ──finish()──► kCopied
//                               └────────lose()─────┴──────► kLost
// kProtected: its pages are write-protected (or the world stands still); nobody has changed a byte
//             since the stop. Anyone may claim().
// kCopying:   exactly one thread, the one whose claim() returned true, reads the pages. The pages are
//             still protected, so a program thread that writes one sleeps in its fault.
// kSaved:     the bytes are in a buffer. The pages may go now, but are still protected.
// kCopied:    the owner has unprotected the pages: who sees kCopied may rely on their being writable.
//             Success of that also proves that the mapping is still the one that was protected, since
//             only that is registered with our userfaultfd: a failure means that the bytes read may
//             be anybody's, hence kLost.
// kLost:      memory vanished before it was copied: the checkpoint is given up.
// A thread that needs a segment in kCopying waits in await_copied(); the faulting thread itself does
// not wait here but in the kernel, where the owner's step 2 wakes it.
#pragma once

#include "base/arena.h"
#include "base/futex.h"
#include "base/units.h"

namespace ckpt {

enum class SegmentState : uint32_t { kProtected = 0, kCopying = 1, kSaved = 2, kCopied = 3, kLost = 4 };

struct Segment {
  Addr base;               // aligned to the segment size
  uint64_t present = 0;    // bit i: page i existed at the stop and belongs to this mapping
  uint32_t region = 0;     // index into regions
  std::atomic<uint32_t> state{static_cast<uint32_t>(SegmentState::kProtected)};
};

// A mapping that segments belong to.
struct Region {
  AddrRange range;
  bool readable = true;   // PROT_READ, else only /proc/self/mem can read it
};

class SegmentTable {
 public:
  // segment_bytes: a power of two, 4 KiB to 256 KiB (64 pages, the width of Segment::present).
  // capacity: most segments that will be added; the arena must hold them.
  [[nodiscard]] bool reserve(Arena& arena, uint64_t segment_bytes, size_t capacity, size_t regions);
  // Runs must come in address order. False: more than the capacity.
  [[nodiscard]] bool add_region(const Region& region);
  [[nodiscard]] bool add_run(AddrRange run);  // of the region added last

  size_t size() const { return size_; }
  Segment& operator[](SegmentId id) { return segments_[id.value]; }
  const Region& region(const Segment& s) const { return regions_[s.region]; }
  uint64_t segment_bytes() const { return segment_bytes_; }

  // The segment that holds the page at `a`, if that page existed at the stop.
  bool find(Addr a, SegmentId* id) const;
  // [first, last) of the segments that may overlap range.
  void find_range(AddrRange range, SegmentId* first, SegmentId* last) const;
  // The segment's window cut to its region.
  AddrRange window(const Segment& s) const;

  [[nodiscard]] bool claim(SegmentId id);
  void saved(SegmentId id);
  void finish(SegmentId id) { leave_copying(id, SegmentState::kCopied); }
  void lose(SegmentId id) { leave_copying(id, SegmentState::kLost); }
  // Returns when the segment is kCopied or kLost.
  void await_copied(SegmentId id);
  SegmentState state(SegmentId id) const {
    return static_cast<SegmentState>(segments_[id.value].state.load(std::memory_order_acquire));
  }

 private:
  void leave_copying(SegmentId id, SegmentState state);

  Segment* segments_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
  ArenaVector<Region> regions_;
  uint64_t segment_bytes_ = 0;
  FutexWord waiters_{0};
};

}  // namespace ckpt
