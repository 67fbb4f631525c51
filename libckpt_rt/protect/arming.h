// Protection ahead of the stop: memory is write-protected while the program runs, so that in the stop
// only what changed since has to be protected, whatever the size of the memory.
//
// The protocol
// ============
// 1. cover(): for all tracked memory, what exists is found block by block (2 MiB, what one page of page
//    tables describes) and gets segments in the table, kWritten and without known pages. The rest of a
//    mapping, in which nothing exists yet, stays outside: it costs nothing, neither time nor page tables.
// 2. pass(): every kWritten segment is set to kProtected, then protected, then its pages are listed. In
//    this order: a page that comes into being after the listing was protected as a hole
//    (UFFD_FEATURE_WP_UNPOPULATED) and faults.
// 3. A thread that writes to a protected page sleeps in a fault until the serving thread has unprotected the
//    segment and then, again in this order, set it to kWritten. In whatever order the two threads meet, a
//    segment in kProtected is protected, and `present` names its pages.
// 4. Passes go on until few segments are kWritten, or their number stays high; memory that appeared
//    meanwhile is covered as well.
// 5. The stop. settle() (arming_settle.cc): kWritten and kUnsettled segments are protected and listed for
//    good, and what is outside is looked at: pages that exist there now are protected and listed too.
//
// Protection that the kernel drops without a word
// -----------------------------------------------
// madvise(DONTNEED, FREE, REMOVE) drops it with the pages, at some time after its event was read;
// munmap, mmap over what is there, and mremap take the registration away before their event is read. Such
// segments are kUnsettled: not protected again before the stop. In the stop every thread is out of its
// system calls, every event has been read (a caller that gives memory back waits for that), so nothing
// changes any more: what is mapped there now is registered, protected and listed like new memory. (A
// segment that is kUnsettled is not looked at by passes, so that no pass takes it for protected.)
//
// From one checkpoint to the next
// -------------------------------
// Where increments are wanted all of this stays when the copying is over (watch.h). resume(): what was copied
// without anybody writing to it is kProtected, and `in_parent`; the rest is kWritten. Faults and events go
// on as before. The next checkpoint begins with renew(): a new table, in which memory that is not tracked any
// more has no segments, and what was kUnsettled becomes kWritten, for the calls that took it away are over -
// or, in a program that makes them without libc, may not be: so the stop asks the kernel whether the
// segments concerned are protected, holes included. check() does the same for all that is kProtected, ahead
// of the stop: what moves memory and tells nobody (a bare mremap, shmat) is found out there.
//
// Where the thread that writes handles its faults (guard.h)
// ---------------------------------------------------------
// The kernel does not wait for a fault that it takes on the program's behalf. So what it may write to is made
// kUnsettled before each system call (open_for_kernel), and for a thread's own stores the thread itself does
// what 3. says (fault_in_thread): docs/fault_back_ends.md. There kWritten and kUnsettled mean that nothing of
// the segment is protected.
//
// Owner:     libckpt_rt. One Arming is one checkpoint's, or one watch's. Its table is the checkpoint's table.
// Callers:   fault, removed: the thread that serves faults (write_protect.h). open_for_kernel,
//            fault_in_thread, removed: threads of the program under guard, with the turn (guard/ahead.cc).
//            The rest: the agent.
// Never:     touches protected memory.
#pragma once

#include <errno.h>

#include "copier/segment_table.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/memory/page_scan.h"
#include "libckpt_rt/protect/armed_memory.h"

namespace ckpt {

inline Error no_memory_for_segments() {
  return make_error(ExitCode::kInternal, ENOMEM,
                    "no address space left for the table of segments; raise the limit (ulimit -v)");
}

class Arming {
 public:
  Arming(ArmedMemory& protection, PageScan& pages, SegmentTable& table)
      : protection_(protection), pages_(pages), table_(table) {}

  Result<void> prepare(Arena& arena, uint64_t segment_bytes);
  // While the program runs, in this order; the first two while the caller holds mappings
  // (interpose/memory/gate.h) from before the map was read. add() registers the mappings that are kTracked,
  // each as a whole; one that cannot be registered becomes kEager. make_changed_eager() compares with the map
  // read once more: a mapping that has changed becomes kEager. run() protects what is not covered yet, and
  // what was written. stacks: stack pointers of the threads: left alone, since the signal that stops a thread
  // writes there.
  void add(std::span<Mapping> map);
  void make_changed_eager(std::span<Mapping> map, std::span<const Mapping> again);
  Result<void> run(std::span<const Mapping> map, std::span<const Addr> stacks);
  // run() and catch_up() end after that, on CLOCK_MONOTONIC: what they have not protected is left to the
  // stop.
  void limit(int64_t deadline_ns) { deadline_ns_ = deadline_ns; }
  // Just ahead of the stop: one more pass, if much was written since run().
  Result<void> catch_up();

  // The next checkpoint, with an arena of its own; the former one is free then. map: as now. full: nothing is
  // in_parent.
  Result<void> renew(Arena& arena, std::span<const Mapping> map, bool full);
  // Finds what is taken for protected and is not, and leaves it to the stop; how many segments that were.
  Result<size_t> check();
  // The copying is over. Called while the caller serves faults; from then on they come here again.
  Result<void> resume();

  // In the stop, while the caller serves faults. open: pages that will be released, sorted. Runs of tracked
  // memory that are to be copied in the pause, being few or not protectable, are added to `eager`.
  Result<void> settle(std::span<Mapping> map, std::span<const Addr> open, ArenaVector<AddrRange>& eager);
  // Pages that are not to be protected after all; their being in the image is the caller's business.
  void release(AddrRange pages);

  // Between checkpoints: the memory that is as it was at the last one, in address order. sure: the threads
  // stand, and the kernel is asked whether its protection has held; without that a hint.
  Result<void> list_unwritten(bool sure, ArenaVector<AddrRange>& unwritten);

  // In the stop: has all of the range segments, of a mapping that is of_job?
  bool covers(AddrRange range) const;

  void fault(Addr a);
  void removed(AddrRange range);
  // The range is writable, and stays so until the stop.
  void open_for_kernel(AddrRange range);
  // A thread's own store faulted at the page. False: it is in no segment. was_writable: there was nothing to
  // do.
  bool fault_in_thread(Addr page, bool* was_writable);

  uint64_t faults() const { return faults_.load(std::memory_order_relaxed); }
  uint32_t passes() const { return passes_; }

 private:
  // A part of a mapping whose segments are in the table. In address order, disjoint.
  struct Covered {
    AddrRange range;
    uint32_t region;
  };

  Result<void> cover(std::span<const Mapping> map);
  Result<void> find_blocks(const Mapping& m, AddrRange rest, ArenaVector<AddrRange>& blocks);
  Result<void> add_to_table(std::span<const AddrRange> blocks, std::span<const Mapping> map);
  bool is_late() const;
  // With the lock.
  Result<void> pass();
  bool protect_now(SegmentId first, SegmentId last, AddrRange range);
  Result<void> protect_next(size_t& i);
  Result<void> settle_suspects();
  Result<void> settle_written(std::span<Mapping> map, std::span<const Addr> open,
                              ArenaVector<AddrRange>& eager);
  Result<bool> is_settled(SegmentId first, SegmentId last);
  Result<size_t> check_range(AddrRange range);
  static constexpr uint32_t kAnyRegion = UINT32_MAX;
  Result<size_t> check_segments(SegmentId first, SegmentId last, uint32_t region);  // without last
  Result<void> settle_part(const Mapping& m, AddrRange part, std::span<const Addr> open,
                           ArenaVector<AddrRange>& eager);
  bool exist(std::span<const Addr> open, AddrRange part) const;
  Result<void> settle_covered(std::span<const Mapping> map);
  Result<void> settle_rest(std::span<Mapping> map, std::span<const Addr> open, ArenaVector<AddrRange>& eager);
  Result<void> list_pages(AddrRange range, bool shared);

  ArmedMemory& protection_;
  PageScan& pages_;
  SegmentTable& table_;
  Arena* arena_ = nullptr;
  uint64_t segment_bytes_ = 0;
  int64_t deadline_ns_ = INT64_MAX;
  // Shared memory that is covered without looking which of it exists, bytes, each time: what the table has
  // room for beside the memory of the process (most_segments() in checkpoint/stages/memory/memory_size.h).
  static constexpr uint64_t kSharedCovered = 1ull << 30;
  uint64_t shared_left_ = 0;
  ArenaVector<Covered> covered_;
  ArenaVector<AddrRange> runs_;  // of one listing
  // Indices into the table, each at most once: appended by the thread that serves faults, taken by the agent,
  // both with the serving lock. Their capacity is the table's size.
  ArenaVector<uint32_t> written_, taken_, unsettled_;
  // Segments that were kUnsettled at renew(): where the stop asks the kernel.
  ArenaVector<AddrRange> suspects_;
  bool suspect_all_ = false;
  // Ranges in no segment that removed() was told of: they may be about to get segments, and the kernel takes
  // their pages away at any time after the event.
  static constexpr size_t kMostEarly = 8192;
  ArenaVector<AddrRange> early_;
  bool early_overflow_ = false;
  bool in_table(AddrRange range) const;
  void unsettle(AddrRange range);
  // Not all of it is protected, whatever its state.
  void mark_open(AddrRange range);
  std::atomic<uint64_t> faults_{0};
  uint32_t passes_ = 0;
};

}  // namespace ckpt
