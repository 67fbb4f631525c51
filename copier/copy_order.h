// In which order the copier looks at segments (CKPT_ORDER). The 1989 paper copies by address and leaves open
// whether another order would save forced copies.
//
//   address  from the lowest to the highest
//   follow   after a fault, the segments behind the one that was written: a thread that writes its way
//            through memory will need them next. Otherwise by address
//   hot      first the segments that were written while memory was protected ahead of the stop
//            (Segment::heat): they will be written again
//   cold     hot segments last: a fault copies a hot segment soon anyway; a cold one may still be copied
//            before its fault
//
// An order only proposes. Every order ends with all segments by address, so that each is proposed at least
// once; the copier passes over a segment that is copied already. No order can break segment_table.h: claim()
// alone decides who owns a copy, and no edge there asks what was copied before. next() ends: it leaves its
// order only after a forced copy, of which a segment has one at most.
//
// Owner:     copier.
// Callers:   next(): the agent, in Copier::run(). faulted(): threads that make forced copies.
// Never:     waits, allocates.
#pragma once

#include <atomic>

#include "base/settings/settings.h"
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
  // The segment was copied because a thread writes to it. relaxed: a hint.
  void faulted(SegmentId id) { faulted_.store(id.value + 1, std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNear = 4;  // segments looked at behind a fault
  enum class Pass { kChosen, kAll };

  bool next_near(SegmentId* id) {
    if (const uint32_t behind = faulted_.load(std::memory_order_relaxed); behind != 0) {
      // A fault between load and store is lost, as is the earlier one of two faults: it is a hint.
      faulted_.store(0, std::memory_order_relaxed);
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
