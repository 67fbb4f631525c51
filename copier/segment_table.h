// The segments of one checkpoint and the state machine that decides who copies each of them, once.
//
// Owner:     copier. Built by the agent, at the latest while threads stand still.
// Callers:   after that all who copy:
//            - the copier (agent thread) in its sequential scan,
//            - the thread that serves faults: forced copies, and memory that the program gives back,
//            - under guard, threads of the program, each for its own fault or call (guard/guard.h).
// Never:     a segment is copied twice, or written by the program before it was copied.
//
// Ahead of the stop, while the program runs and nothing is copied yet (libckpt_rt/protect/arming.h):
//
//   kWritten ◄──written()── kProtected          kUnsettled: until the stop, or renew()
//      └───────protect()────────►▲
//
// From the stop on, where every segment is made kProtected:
//
//                               ┌───────finish(): not to be copied──────┐
//   kProtected ──claim()──► kCopying ──saved()──► kSaved ──finish()──► kCopied ◄─┐
//                               │                   ├─────settle()───────────────┤
//                               │                   ├─leave_protected()─► kUnchanged ─┘ want()
//                               └────────lose()─────┴──────► kLost
// kProtected: its pages are write-protected (or the world stands still); nobody has changed a byte
//             since the stop. Anyone may claim().
// kWritten:   ahead of the stop: a thread wrote to it, it is unprotected, and `present` may be out of date.
// kUnsettled: ahead of the stop: its protection proves nothing, since the program is giving its pages back,
//             or has replaced the mapping. The agent looks at it again in the stop.
// kCopying:   exactly one thread, the one whose claim() returned true, reads the pages. The pages are
//             still protected, so a program thread that writes one sleeps in its fault.
//             The bytes read are those of the stop if all of the segment is still protected afterwards
//             (Copier::is_unchanged).
// kSaved:     the bytes are in a buffer. The pages may go now, but are still protected. The copier leaves
//             several segments so, to unprotect them by one call. A thread that needs one of them before that
//             unprotects it itself and settle()s it. (Not where segments are to stay protected.)
// kCopied:    the pages are unprotected and writable. (A segment that want() takes from kUnchanged is
//             unprotected a moment later, by the thread that called want().) That the owner could unprotect
//             them also proves that the mapping is still the one that was protected, since only that is
//             registered with our userfaultfd. If it could not, the bytes read may be anybody's: kLost.
// kUnchanged: copied, and protected still: nobody has changed a byte since the stop. So the next checkpoint
//             need not copy it (Segment::in_parent). The first write makes it kCopied, by want(). A thread
//             that writes earlier, in kCopying or kSaved, sleeps in a fault that only the owner can end: the
//             serving thread marks the segment by want(), and leave_protected() fails.
// kLost:      memory vanished before it was copied: the checkpoint is given up.
// A segment without pages stays kProtected until a thread writes to it or its memory goes: then it is
// claimed, and finish() makes it kCopied without a copy. So does a segment whose pages are all in the
// parent's image (in_parent). Copier::unprotect_uncopied() and make_writable() unprotect it in between;
// removed() does not, for its pages go. A thread that needs a segment in kCopying waits in await_copied(). A
// thread whose fault is served by another waits in the kernel until the owner unprotects the segment; under
// guard it waits in await_copied() as well.
#pragma once

#include "base/locks/futex.h"
#include "base/memory/arena.h"
#include "base/units.h"

namespace ckpt {

enum class SegmentState : uint32_t {
  kUnsettled = 0,
  kWritten = 1,
  kProtected = 2,
  kCopying = 3,
  kSaved = 4,
  kCopied = 5,
  kLost = 6,
  kUnchanged = 7
};

struct Segment {
  Addr base;             // aligned to the segment size
  uint64_t present = 0;  // bit i: page i existed at the stop and belongs to this mapping
  uint32_t region = 0;   // index into regions
  // Both change only until the end of the stop, with the lock of serving; then all copying threads read them.
  // From one checkpoint to the next resume() and renew() set them anew (libckpt_rt/protect/arming.h).
  bool in_parent = false;  // nobody wrote to it since the last stop: an increment need not have it
  bool open = false;       // not all of it is protected: it cannot be kUnchanged
  // How often it was written ahead of the stop, as far as that was seen: a hint for the order of copying.
  // Counted with the lock of serving until the stop, read after it.
  uint8_t heat = 0;
  // Since the stop the program has given pages of it back: its protection proves nothing any more.
  std::atomic<bool> given_back{false};
  // In kSaved: its bytes were found to be those of the stop, so that its protection may come off.
  std::atomic<bool> proven{false};
  std::atomic<uint32_t> state{static_cast<uint32_t>(SegmentState::kProtected)};
};

// A mapping that segments belong to.
struct Region {
  AddrRange range;
  bool readable = true;  // PROT_READ, else only /proc/self/mem can read it
  bool shared = false;
  // Other members of the job write to it too, and protect it as we do (shared_source.h).
  bool of_job = false;

  // May segments of both be read, and unprotected, by one call of the kernel?
  bool is_copied_like(const Region& other) const {
    return this == &other || (readable == other.readable && !shared && !other.shared);
  }
};

class SegmentTable {
 public:
  // segment_bytes: a power of two, 4 KiB to 256 KiB (64 pages, the width of Segment::present).
  // capacity: most segments that will be added; the arena must hold them.
  [[nodiscard]] bool reserve(Arena& arena, uint64_t segment_bytes, size_t capacity, size_t regions);
  // Runs must come in address order. False: more than the capacity.
  [[nodiscard]] bool add_region(const Region& region);
  [[nodiscard]] bool add_run(AddrRange run);  // pages that exist, of the region added last
  // Segments of the region added last, none of whose pages is known to exist. False: as above.
  [[nodiscard]] bool add_window(AddrRange window);
  // The pages of run exist, as far as they are in segments of the table.
  void set_present(AddrRange run);
  bool is_present(Addr page) const;
  bool has_pages_around(Addr page) const;  // in its segment
  // Of the pages that are present, without the segments in_parent.
  uint64_t bytes_to_copy() const;
  // The value of `present` when every page of the window exists.
  uint64_t all_pages(SegmentId id) const {
    return page_mask(segments_[id.value].base, window(segments_[id.value]));
  }
  // The pages of run do not exist, or do not belong to the image.
  void clear_present(AddrRange run);
  // Segments that an empty table needs for `run`.
  static size_t segments_of(AddrRange run, uint64_t segment_bytes) {
    return run.empty() ? 0 : (run.end.value - 1) / segment_bytes - run.start.value / segment_bytes + 1;
  }
  // Takes all segments of `other`, in address order. No region of one may overlap one of the other; both
  // tables have come from `arena`. False: no room.
  [[nodiscard]] bool merge(Arena& arena, const SegmentTable& other);
  // Becomes `other`, which must not be used any more.
  void replace_by(const SegmentTable& other);

  size_t size() const { return size_; }
  Segment& operator[](SegmentId id) { return segments_[id.value]; }
  const Segment& operator[](SegmentId id) const { return segments_[id.value]; }
  const Region& region(const Segment& s) const { return regions_[s.region]; }
  const Region& region(uint32_t index) const { return regions_[index]; }
  std::span<Region> regions() { return regions_.span(); }
  uint64_t segment_bytes() const { return segment_bytes_; }

  // The segment in whose window `a` lies.
  bool find(Addr a, SegmentId* id) const;
  // [first, last) of the segments that may overlap range.
  void find_range(AddrRange range, SegmentId* first, SegmentId* last) const;
  // The segment's window cut to its region.
  AddrRange window(const Segment& s) const;

  // Ahead of the stop, with the lock of serving. written(): after the segment was unprotected. unsettled():
  // at any time. Both say whether it was kProtected. protect(): the agent, before it protects the segment, so
  // that a fault in between is not forgotten; false if it was not kWritten.
  bool written(SegmentId id);
  bool unsettled(SegmentId id);
  bool protect(SegmentId id);
  // While no other thread uses the table.
  void set(SegmentId id, SegmentState state) {
    // relaxed: published by what publishes the table.
    segments_[id.value].state.store(static_cast<uint32_t>(state), std::memory_order_relaxed);
    if (state == SegmentState::kUnsettled || state == SegmentState::kWritten)
      segments_[id.value].in_parent = false;
  }

  [[nodiscard]] bool claim(SegmentId id);
  void saved(SegmentId id);
  void finish(SegmentId id) { leave_copying(id, SegmentState::kCopied); }
  // By any thread that has unprotected the segment: kSaved becomes kCopied, another state stays.
  void settle(SegmentId id);
  // By the owner, instead of finish(): the pages stay protected. False: want() was called.
  [[nodiscard]] bool leave_protected(SegmentId id);
  // A thread needs the pages writable. In kCopying and kSaved this leaves a mark, and the owner will
  // unprotect the segment. kUnchanged becomes kCopied, and the caller must unprotect it, unless its pages are
  // about to go (Copier::removed()): then the kernel drops them, and the protection with them. Returns the
  // state before.
  SegmentState want(SegmentId id);
  bool is_wanted(SegmentId id) const {
    return (segments_[id.value].state.load(std::memory_order_seq_cst) & kWanted) != 0;
  }
  void lose(SegmentId id) { leave_copying(id, SegmentState::kLost); }
  // Returns when the segment is kCopied, kLost or, unless want() was called before, kUnchanged.
  void await_copied(SegmentId id);
  SegmentState state(SegmentId id) const {
    // seq_cst: Copier::run() stores rest_checked_, and then looks here for segments that others have claimed.
    return static_cast<SegmentState>(segments_[id.value].state.load(std::memory_order_seq_cst) & ~kWanted);
  }

 private:
  [[nodiscard]] bool add(AddrRange pages, bool present);
  // Bits of the pages that lie in the segment at base.
  uint64_t page_mask(Addr base, AddrRange pages) const;
  static constexpr uint32_t kWanted = 1u << 31;  // beside kCopying, kSaved: want()
  bool change(SegmentId id, SegmentState from, SegmentState to);
  void leave_copying(SegmentId id, SegmentState state);

  Segment* segments_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
  ArenaVector<Region> regions_;
  uint64_t segment_bytes_ = 0;
  FutexWord waiters_{0};
};

}  // namespace ckpt
