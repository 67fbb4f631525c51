// Events and their total order.
//
// Owner:     an event's buffer belongs to the thread that executes the event, from the moment the sender has
//            put it into a channel; to the sending thread before that. `next_sent` alone stays with the
//            sender (worker.h).
// Callers:   engines and queues. Header only.
// Never:     moves: pointers to an event stay valid until it is final or cancelled.
//
// The order is that of (time, depth, sender, count). `count` numbers the messages of a sender. `depth` is 0
// for a message that goes into the future, and its cause's depth plus 1 for one that is sent without delay:
// so an event always comes after its cause, and the order in which one thread would execute all events is the
// order of the keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace ckpt::timewarp {

inline constexpr unsigned kCountBits = 48;
inline constexpr uint64_t kDeepest = 0xffff;

struct Key {
  double time = 0;
  uint64_t order = 0;  // depth << kCountBits | count
  uint32_t sender = 0;

  static Key never() { return {std::numeric_limits<double>::infinity(), ~uint64_t{0}, ~uint32_t{0}}; }
};

inline uint64_t depth_of(uint64_t order) { return order >> kCountBits; }

// depth, then sender, then count.
inline bool order_less(uint64_t a_order, uint32_t a_sender, uint64_t b_order, uint32_t b_sender) {
  if (depth_of(a_order) != depth_of(b_order)) return a_order < b_order;
  if (a_sender != b_sender) return a_sender < b_sender;
  return a_order < b_order;
}
inline bool operator<(const Key& a, const Key& b) {
  if (a.time != b.time) return a.time < b.time;
  return order_less(a.order, a.sender, b.order, b.sender);
}
inline bool operator==(const Key& a, const Key& b) {
  return a.time == b.time && a.order == b.order && a.sender == b.sender;
}

enum class EventStatus : uint8_t {
  kWaiting,    // in a channel or in the queue, not executed, or no longer
  kExecuted,   // has a record
  kCancelled,  // in the queue, to be dropped when it comes out
};

// The message follows behind the event.
struct Event {
  double time;
  uint64_t order;
  uint32_t sender, receiver;
  Event* next_sent;  // of the same cause
  uint32_t bytes;    // of the message
  uint16_t from;     // the thread whose pool it came from
  EventStatus status;
  uint8_t foreign;  // came from another process: found by its key in the list of those

  Key key() const { return {time, order, sender}; }
  std::byte* message() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* message() const { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(Event) == 40);

inline bool operator<(const Event& a, const Event& b) {
  if (a.time != b.time) return a.time < b.time;
  return order_less(a.order, a.sender, b.order, b.sender);
}

}  // namespace ckpt::timewarp
