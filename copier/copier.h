// Copying segments: sequentially in the scan, forced by a fault, or because the program is about to
// give the memory back. The paper's copier thread, with one owner for each copy (segment_table.h).
//
// run() can hand sequential copies to a copy engine, many at a time. Such a segment is kCopying, and the
// engine owns it until it calls copied(). The serving thread, if it needs the segment before that,
// re-synchronises with just this copy, and then owns it unless the copy is done. Neither misses the other:
// in fault() the serving thread marks the segment (want()) and then looks for its ticket; run() notes the
// ticket and then looks for the mark. before_release() marks nothing: it looks for the ticket again and again
// until the segment is copied. Under guard no engine is used (back_ends/choose.cc).
//
// Owner:     copier. One Copier is one checkpoint's copying.
// Callers:   use(), set_order(), set_together(), share(), run(), unprotect_rest(), shared_is_protected(): the
//            agent. copied(): the engine's thread, or the thread that has re-synchronised with the copy.
//            fault(), before_release(), removed(): the serving thread, or the agent in its place.
//            let_events_be_read(): a thread that copies and does not serve.
//            make_writable(), tracks(), note_fault(), note_wait(): threads under guard.
//            holds(), shared_range(), is_shared(), give_up_shared(): any thread (of the program: those that
//            fork, by release_guard.cc).
// Never:     touches the program's memory but through ProgramMemory, which reports vanished memory
//            instead of crashing.
#pragma once

#include <atomic>
#include <span>

#include "base/memory/copy_piece.h"
#include "copier/buffer_pool.h"
#include "copier/copy_order.h"
#include "copier/engines/copy_engine.h"
#include "copier/filled_queue.h"
#include "copier/segment_table.h"
#include "copier/shared/shared_source.h"

namespace ckpt {

// What a copier needs of the process whose memory it copies.
class ProgramMemory : public SourceMemory {
 public:
  // Copies all pieces, by one call where that is cheaper. 0 or -errno: what all buffers hold is void then.
  virtual long read_pieces(std::span<const CopyPiece> pieces, bool readable) {
    for (const CopyPiece& piece : pieces) {
      if (const long r = read(piece.to, piece.from, piece.bytes, readable); r != 0) return r;
    }
    return 0;
  }
  // Makes the pages writable and wakes threads that wait for them. 0; -ENOENT when other memory than that
  // which was protected lies in the range now. The kernel passes over holes: 0 does not say that all of the
  // range is mapped.
  virtual long unprotect(AddrRange range) = 0;
  // The same, and 0 only if all of the range is mapped, and is the memory that was protected.
  virtual long unprotect_many(AddrRange range) { return unprotect(range); }
  // Is a successful unprotect() the only proof that memory is what was protected? Then a hole must not pass
  // for it.
  virtual bool unprotecting_proves() const { return false; }
  // May unprotect() come late, when another thread has unprotected the same memory and the program has gone
  // on? Not where unprotect() changes what the program itself sets.
  virtual bool may_unprotect_late() const { return true; }
  // Is all of the range protected, as it has been since the stop? Then nobody has written to it, and it is
  // the same memory. True also where the kernel cannot tell: then a successful unprotect() is the only proof.
  virtual bool still_protected(AddrRange) { return true; }
  virtual void wake(AddrRange range) = 0;
  // When it returns, every remove event that was read before the call has reached Copier::removed().
  virtual void settle_events() {}
  // Called again and again in a long before_release(): reads events, and serves the faults that wait.
  virtual void meanwhile() {}
  // Called by a thread that waits for a buffer of a forced copy: by the serving thread, or, under guard, by a
  // thread of the program. Reads the events that wait, and serves no fault. Under guard there are none.
  virtual void read_events() {}

 protected:
  ~ProgramMemory() = default;
};

struct CopyCounters {
  std::atomic<uint64_t> sequential{0}, forced{0}, released{0}, faults{0}, zero_pages{0};
  std::atomic<uint64_t> longest_wait_ns{0}, all_waits_ns{0};
};

class Copier final : private CopyListener {
 public:
  Copier(SegmentTable& table, BufferPool& pool, FilledQueue& queue, ProgramMemory& memory)
      : table_(table), pool_(pool), queue_(queue), memory_(memory), scan_(table) {}

  // From now on sequential copies go through `engine`, whose listener is listener(). A copy that is needed
  // early is aborted and made by the processor if the engine has done less than `threshold` percent of it;
  // else the processor finishes it.
  void use(CopyEngine& engine, uint32_t threshold) {
    threshold_ = threshold;
    engine_.store(&engine, std::memory_order_release);
  }
  CopyListener& listener() { return *this; }
  // The order in which run() copies; by address unless set.
  void set_order(Order order) { order_ = order; }
  // Before run(), while threads stand: regions that are of_job are read by `source`. Such regions are copied
  // first, and stay protected when they are copied, until this process writes to them.
  void share(SharedSource& source) { shared_ = &source; }
  // After run(), while faults are still served: false: a segment that should be protected is not. So this
  // process may have written to it past the others.
  bool shared_is_protected();
  // Do other members still copy shared memory that we must not write to unseen?
  bool is_shared() const { return shared_ != nullptr && shared_->needed(); }
  void give_up_shared() {
    if (shared_ != nullptr) shared_->give_up();
  }
  // How much of what lies side by side is read by one call of the kernel, where that reads it: one segment at
  // least.
  void set_together(uint64_t bytes) { together_bytes_ = bytes; }
  // Copies every segment that has pages to copy and no other owner. Returns when all of these are kCopied or
  // kUnchanged, or a segment is lost. False: a segment is lost. leave_protected: segments without a write
  // stay protected.
  bool run(bool leave_protected = false);
  // A thread wrote to the protected page at `a`: copies the segment if the image needs it, and makes it
  // writable, or has its owner do so.
  void fault(Addr a);
  // The caller cannot unprotect memory before an event is read. If the serving thread waits for a buffer, it
  // reads events now.
  void let_events_be_read() { pool_.interrupt(); }
  // Is any of the range still to be copied, or still to be checked as unchanged since the parent's image?
  bool holds(AddrRange range) const;
  // The i-th of the regions that are shared memory of this process alone; false when there are no more.
  bool shared_range(size_t i, AddrRange* range) const;
  // The program will give the range back when this returns. Copies the segments that are still to be copied,
  // and checks the protection of the others.
  void before_release(AddrRange range);
  // The program gave memory back without asking (userfaultfd's remove event): a segment there that is not
  // copied yet is lost.
  void removed(AddrRange range);

  // Under guard (libckpt_rt/guard/guard.h) no thread serves faults: a thread that faults, or is about to
  // make a system call that writes, calls this for itself. Copies the segments that the image needs, and
  // waits for copies under way. False: the range cannot be made writable.
  bool make_writable(AddrRange range);
  // Is the page in a segment? Then `copied` says whether the segment is kCopied or later.
  bool tracks(Addr page, bool* copied) const;
  void note_fault(uint64_t waited_ns);
  void note_wait(uint64_t waited_ns);
  // After run(): takes the protection off segments that nobody has written to.
  void unprotect_rest();

  bool lost() const { return lost_.load(std::memory_order_acquire); }
  Addr lost_at() const { return Addr{lost_at_.load(std::memory_order_relaxed)}; }
  const char* lost_how() const { return lost_how_.load(std::memory_order_relaxed); }
  CopyCounters& counters() { return counters_; }

 private:
  void copy_owned(SegmentId id, uint32_t buffer, bool leave_protected = false);
  // The caller may have claimed a segment already. removed() finds it in kCopying and loses it: its bytes
  // have not been read, and its memory goes once the event is read.
  uint32_t forced_buffer();
  // Sequential copies, by the processor or by an engine.
  void copy_in_order(bool in_batches);
  void copy_by_engine(CopyEngine& engine);
  // The segments that were claimed together are read by one call of the kernel, if it can.
  void copy_together(bool in_batches);
  bool follows_together(SegmentId id) const;
  bool shares_buffer(SegmentId id) const;
  SegmentId together_at(uint32_t i) const { return {together_first_.value + i}; }
  bool read_together(uint32_t count);
  // Leaves a segment whose bytes were read kSaved: end_batch() unprotects all of a batch by one call. A call
  // for each would cost as much as the copy. A thread that needs such a segment earlier unprotects it
  // itself (unprotect_saved).
  void add_to_batch(SegmentId id, uint32_t buffer);
  void end_batch();
  void unprotect_saved(SegmentId id);
  void queue_filled(Addr base, uint64_t pages, uint32_t buffer);
  // The second half of a copy, after the bytes were read. The caller owns the segment. kNoBuffer: only where
  // no bytes were got, and the buffer is another segment's too.
  void complete(SegmentId id, uint32_t buffer, bool got_bytes, bool leave_protected);
  bool submit_to_engine(CopyEngine& engine, SegmentId id, uint32_t buffer);
  void resync_segment(SegmentId id);
  void await_queued(uint32_t most);
  void copied(uint64_t cookie, long result) override;
  bool to_copy(SegmentId id) const { return table_[id].present != 0 && !table_[id].in_parent; }
  bool is_of_job(const Segment& s) const { return shared_ != nullptr && table_.region(s).of_job; }
  bool copy_shared();
  bool read_runs(Segment& s, std::byte* to);
  bool unprotect_segment(const Segment& s);
  // Is what was read of the segment as at the stop? Asked by its owner, or by anyone once it is kSaved.
  bool is_unchanged(const Segment& s);
  bool batch_is_unchanged();
  // A thread writes to a segment that is not to be copied, and that the caller owns: makes it writable.
  void unprotect_uncopied(SegmentId id);
  // Segments of [first, last) that are not copied must still be protected: nothing else proves that their
  // pages are absent, or as in the parent's image. A segment that has lost its protection unannounced is
  // lost.
  void check_rest(SegmentId first, SegmentId last);
  void set_lost(Addr a, const char* how);

  SegmentTable& table_;
  BufferPool& pool_;
  FilledQueue& queue_;
  ProgramMemory& memory_;
  SharedSource* shared_ = nullptr;
  CopyCounters counters_;
  Order order_ = Order::kAddress;
  CopyOrder scan_;
  std::atomic<bool> rest_checked_{false};  // run() has had check_rest() look at all segments
  std::atomic<bool> told_{false};          // removed() was called; relaxed: a hint
  std::atomic<bool> lost_{false};
  std::atomic<uint64_t> lost_at_{0};
  std::atomic<const char*> lost_how_{""};

  // Neighbours, of regions that are copied alike, that are kCopying and are about to be read. A thread that
  // waits for one waits for the copy of all.
  uint64_t together_bytes_ = 256 << 10;
  static constexpr uint32_t kMostTogether = 16, kMostPieces = 64;
  SegmentId together_first_{0};
  uint32_t together_count_ = 0;
  uint32_t together_buffers_[kMostTogether];
  static constexpr uint32_t kNoBuffer = UINT32_MAX;

  static constexpr const char* kNotTheSame = "it is not the memory that was protected";
  // Bytes of one question for protection: a thread that maps memory waits for it.
  static constexpr uint64_t kAtOnce = 64 << 20;
  // The batch: neighbours that are kSaved, of regions that are copied alike. Programs with thousands of
  // mappings have few segments in each.
  static constexpr uint32_t kMostInBatch = 64;
  static constexpr uint64_t kBatchBytes = 1 << 20;
  SegmentId batch_first_{0};
  uint32_t batch_count_ = 0;
  AddrRange batch_range_{};
  uint32_t batch_buffers_[kMostInBatch];

  // A copy that the engine has.
  struct Queued {
    SegmentId id;
    uint32_t buffer;
    CopyTicket ticket;  // value 0: submit() has not returned yet
  };
  static constexpr uint32_t kMostQueued = 64;
  std::atomic<CopyEngine*> engine_{nullptr};
  uint32_t threshold_ = 0;
  bool leave_protected_ = false;
  // run() works in batches, so kSaved segments may be unprotected by other threads than their owner. relaxed:
  // a thread that sees false waits for the owner, which is right as well.
  std::atomic<bool> in_batches_{false};
  FutexLock<LockRank::kEngineCopies> queued_lock_;  // leaf: guards queued_ and queued_count_
  Queued queued_[kMostQueued];
  uint32_t queued_count_ = 0;
  FutexWord completed_{0};  // how many copies of the engine are complete
};

// True when the page at p holds only zeros.
bool page_is_zero(const std::byte* p);

}  // namespace ckpt
