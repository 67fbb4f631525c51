// In which order the copier looks at segments (CKPT_ORDER). The 1989 paper copies by address and leaves open
// whether another order would save forced copies.
//
//   address  from the lowest to the highest
//   follow   after a fault, the segments behind the one that was written: a thread that writes its way
//            through memory will need them next. Otherwise by address
//   hot      first what was written while memory was protected ahead of the stop (Segment::heat): it will
//            be written again
//   cold     that last: what is written at once is copied by its fault anyway, and the rest may be copied
//            before one
//
// An order only proposes. Whatever it is, next() ends with all segments by address, so that each has been
// proposed once at least. One that is proposed again is found copied. What is said in segment_table.h stays
// true: who owns a copy is decided by claim() alone, each state is left by its owner only, and no edge asks
// what was copied before. next() ends: only a forced copy lets it look elsewhere, and a segment has one at
// most.
//
// Owner:     copier. Callers: next(): the thread that copies in order. faulted(): whoever serves faults, on
// any thread. Never:     waits, allocates.
#pragma once

#include <atomic>

#include "base/settings.h"
#include "copier/segment_table.h"

namespace ckpt {

class CopyOrder {
 public:
  explicit CopyOrder(const SegmentTable& table) : table_(table) {}

  void begin(Order order) {
    order_ = order;
    at_ = near_ = near_left_ = 0;
    pass_ = order == Order::kHot || order == Order::kCold ? Pass::kChosen : Pass::kAll;
  }
  // False: all have been proposed.
  bool next(SegmentId* id) {
    if (order_ == Order::kFollow && next_near(id)) return true;
    for (;; ++at_) {
      if (at_ >= table_.size()) {
        if (pass_ == Pass::kAll) return false;
        pass_ = Pass::kAll;
        at_ = 0;
        if (table_.size() == 0) return false;
      }
      if (pass_ == Pass::kChosen && (table_[SegmentId{at_}].heat != 0) != (order_ == Order::kHot)) continue;
      *id = SegmentId{at_++};
      return true;
    }
  }
  // A thread has written to the segment. relaxed: a hint.
  void faulted(SegmentId id) { faulted_.store(id.value + 1, std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNear = 4;  // segments looked at behind a fault
  enum class Pass { kChosen, kAll };

  bool next_near(SegmentId* id) {
    if (const uint32_t behind = faulted_.load(std::memory_order_relaxed); behind != 0) {
      faulted_.store(
          0, std::memory_order_relaxed);  // one that comes in between is lost, as is one that another follows
      near_ = behind;
      near_left_ = kNear;
    }
    if (near_left_ == 0 || near_ >= table_.size()) return false;
    --near_left_;
    *id = SegmentId{near_++};
    return true;
  }

  const SegmentTable& table_;
  Order order_ = Order::kAddress;
  Pass pass_ = Pass::kAll;
  uint32_t at_ = 0, near_ = 0, near_left_ = 0;
  std::atomic<uint32_t> faulted_{0};
};

}  // namespace ckpt
