// Copying segments: sequentially in the scan, forced by a fault, or because the program is about to
// give the memory back. The paper's copier thread, with one owner for each copy (segment_table.h).
//
// Copies in order can be handed to a copy engine, many at a time. Such a segment is kCopying, and the engine
// owns it, until it says that it is done; who needs the segment before that re-synchronises with just this
// copy, and owns it if the engine lets go of it. (A thread marks the segment as wanted and then looks for its
// ticket; run() notes the ticket and then looks for the mark: one of the two finds the other.)
//
// Owner:     copier. One Copier is one checkpoint's copying.
// Callers:   run(), use(): the agent. copied(): the engine's thread.
//            fault(), before_release(), removed(): the thread that serves faults.
//            holds(), make_writable(), tracks(), note_fault(): any thread.
// Never:     touches the program's memory but through ProgramMemory, which reports vanished memory
//            instead of crashing.
#pragma once

#include <atomic>

#include "copier/buffer_pool.h"
#include "copier/copy_engine.h"
#include "copier/copy_order.h"
#include "copier/filled_queue.h"
#include "copier/segment_table.h"

namespace ckpt {

// What a copier needs of the process whose memory it copies.
class ProgramMemory : public SourceMemory {
 public:
  // Makes the pages writable and wakes threads that wait for them. 0; -ENOENT when the range is not
  // (any more) the memory that was protected.
  virtual long unprotect(AddrRange range) = 0;
  // The same for several segments at once: 0 only if all of the range is mapped, too. (The kernel passes over
  // holes.)
  virtual long unprotect_many(AddrRange range) { return unprotect(range); }
  // May unprotect() come late, when another thread has unprotected the same and the program has gone on with
  // it? Not where it changes what the program itself sets.
  virtual bool may_unprotect_late() const { return true; }
  // Is all of the range protected, as it has been since the stop? Then nobody has written to it, and it is
  // the same memory. What cannot be told counts as protected: then unprotect() is all the proof there is.
  virtual bool still_protected(AddrRange) { return true; }
  virtual void wake(AddrRange range) = 0;
  // Every remove event that was read before this call has reached Copier::removed() when it returns.
  virtual void settle_events() {}
  // Between two segments of a long before_release(): others may be waiting for the caller.
  virtual void meanwhile() {}

 protected:
  ~ProgramMemory() = default;
};

struct CopyCounters {
  std::atomic<uint64_t> sequential{0}, forced{0}, released{0}, faults{0}, zero_pages{0};
  std::atomic<uint64_t> longest_wait_ns{0};
};

class Copier final : private CopyListener {
 public:
  Copier(SegmentTable& table, BufferPool& pool, FilledQueue& queue, ProgramMemory& memory)
      : table_(table), pool_(pool), queue_(queue), memory_(memory), scan_(table) {}

  // From now on copies in order go through `engine`, whose listener is listener(). A copy that somebody needs
  // before the engine has done `threshold` percent of it is taken back and made here, else it is finished
  // here.
  void use(CopyEngine& engine, uint32_t threshold) {
    threshold_ = threshold;
    engine_.store(&engine, std::memory_order_release);
  }
  CopyListener& listener() { return *this; }
  // Of run(); by address unless said.
  void set_order(Order order) { order_ = order; }
  // Copies every segment nobody else has. Returns when all are kCopied or kKept, or one is lost. False: lost.
  // keep: what nobody writes to stays protected.
  bool run(bool keep = false);
  // A thread wrote to the protected page at `a`: makes it writable, having copied what belongs to the image.
  void fault(Addr a);
  // Is anything of range still to be copied, or to be found as the image before has it?
  bool holds(AddrRange range) const;
  // The i-th of the regions that are shared memory; false when there are no more.
  bool shared_range(size_t i, AddrRange* range) const;
  // The program will give [range) back when this returns. Copies what is still to be copied, asks about what
  // is not.
  void before_release(AddrRange range);
  // The program gave memory back without asking (userfaultfd's remove event): lost unless copied.
  void removed(AddrRange range);

  // Without a thread that serves faults (libckpt_rt/guard/guard.h): what a fault, or a system call that
  // writes, needs done, by the very thread. Copies what belongs to the image, waits for copies under way.
  // False: it cannot be made writable.
  bool make_writable(AddrRange range);
  // Is the page in a segment? copied: and was it made writable already?
  bool tracks(Addr page, bool* copied) const;
  void note_fault(uint64_t waited_ns);
  void note_wait(uint64_t waited_ns);
  // After run(): what nobody has made writable.
  void unprotect_rest();

  bool lost() const { return lost_.load(std::memory_order_acquire); }
  Addr lost_at() const { return Addr{lost_at_.load(std::memory_order_relaxed)}; }
  const char* lost_how() const { return lost_how_.load(std::memory_order_relaxed); }
  CopyCounters& counters() { return counters_; }

 private:
  void copy_owned(SegmentId id, uint32_t buffer, bool keep = false);
  // Copied in order, and writable only when end_batch() has said so to the kernel, once for all: a call for
  // each would cost as much as the copy. Whoever needs one before that lets it go himself (let_go).
  void copy_in_batch(SegmentId id, uint32_t buffer);
  void end_batch();
  void let_go(SegmentId id);
  void hand_in(SegmentId id, uint32_t buffer);
  // What comes after reading: the caller has become the owner again.
  void complete(SegmentId id, uint32_t buffer, bool got_bytes, bool keep);
  bool hand_over(CopyEngine& engine, SegmentId id, uint32_t buffer);
  void take_back(SegmentId id);
  void await_queued(uint32_t most);
  void copied(uint64_t cookie, long result) override;
  bool to_copy(SegmentId id) const { return table_[id].present != 0 && !table_[id].in_parent; }
  bool read_runs(Segment& s, std::byte* to);
  bool unprotect_segment(const Segment& s);
  // For its owner, or after it is kSaved: what was read of it is of the stop.
  bool is_unchanged(const Segment& s);
  bool batch_is_unchanged();
  // The caller owns a segment that is not copied: a thread writes to it.
  void let_be_written(SegmentId id);
  // What is not copied, of [first, last), and has lost its protection without a word, and so perhaps its
  // content, is lost().
  void check_rest(SegmentId first, SegmentId last);
  void set_lost(Addr a, const char* how);

  SegmentTable& table_;
  BufferPool& pool_;
  FilledQueue& queue_;
  ProgramMemory& memory_;
  CopyCounters counters_;
  Order order_ = Order::kAddress;
  CopyOrder scan_;
  std::atomic<bool> rest_checked_{false};  // by run(), all of it
  std::atomic<bool> told_{false};          // that memory was given back; relaxed: a hint
  std::atomic<bool> lost_{false};
  std::atomic<uint64_t> lost_at_{0};
  std::atomic<const char*> lost_how_{""};

  // Neighbours that are kSaved.
  static constexpr uint32_t kMostInBatch = 64;
  static constexpr uint64_t kBatchBytes = 1 << 20;
  SegmentId batch_first_{0};
  uint32_t batch_count_ = 0;
  AddrRange batch_range_{};
  uint32_t batch_buffers_[kMostInBatch];

  // Copies that an engine has.
  struct Queued {
    SegmentId id;
    uint32_t buffer;
    CopyTicket ticket;  // value 0: about to be known
  };
  static constexpr uint32_t kMostQueued = 64;
  std::atomic<CopyEngine*> engine_{nullptr};
  uint32_t threshold_ = 0;
  bool keep_ = false;
  // Segments are made writable in batches, and by others than their owners. relaxed: false is always right.
  std::atomic<bool> in_batches_{false};
  FutexLock queued_lock_;  // leaf: guards the two
  Queued queued_[kMostQueued];
  uint32_t queued_count_ = 0;
  FutexWord completed_{0};  // copies of the engine
};

// True when the page at p holds only zeros.
bool page_is_zero(const std::byte* p);

}  // namespace ckpt
