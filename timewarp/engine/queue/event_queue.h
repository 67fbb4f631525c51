// The events of a thread that are to be executed, smallest first.
//
// Owner:     a thread of the engine.
// Callers:   that thread only.
// Never:     removes an event but the first: a cancelled event is dropped by its owner when it comes out.
//
// Four queues behind one interface; which is best is a matter of measurement (docs/timewarp.md). The ladder
// queue is called without indirection, because it is the default and two calls an event are seen.
#pragma once

#include <memory>

#include "ckpt_timewarp.h"
#include "timewarp/engine/queue/ladder_queue.h"

namespace ckpt::timewarp {

class OtherQueue {
 public:
  virtual ~OtherQueue() = default;
  virtual void push(Entry entry) = 0;
  // The smallest; {infinity, nullptr} if there is none.
  virtual Entry min() = 0;
  virtual void pop() = 0;
  virtual size_t size() const = 0;
};

std::unique_ptr<OtherQueue> make_heap_queue();
std::unique_ptr<OtherQueue> make_calendar_queue();
std::unique_ptr<OtherQueue> make_splay_queue();

class EventQueue {
 public:
  EventQueue(ckpt_tw_queue kind, bool prefetch) : ladder_(prefetch), prefetch_(prefetch) {
    if (kind == CKPT_TW_HEAP) other_ = make_heap_queue();
    if (kind == CKPT_TW_CALENDAR) other_ = make_calendar_queue();
    if (kind == CKPT_TW_SPLAY) other_ = make_splay_queue();
  }
  void push(Entry entry) {
    if (other_ == nullptr) [[likely]]
      return ladder_.push(entry);
    other_->push(entry);
  }
  Entry min() { return other_ == nullptr ? ladder_.min() : other_->min(); }
  void pop() {
    if (other_ == nullptr) [[likely]]
      return ladder_.pop();
    other_->pop();
  }
  size_t size() const { return other_ == nullptr ? ladder_.size() : other_->size(); }
  // The event that will probably come out some events later, or nullptr: to fetch its LP into the cache.
  const Event* soon() const {
    constexpr size_t kAhead = 6;
    return prefetch_ && other_ == nullptr ? ladder_.ahead(kAhead) : nullptr;
  }

 private:
  LadderQueue ladder_;
  const bool prefetch_;
  std::unique_ptr<OtherQueue> other_;
};

}  // namespace ckpt::timewarp
