// The words of the protocol by which several hosts take one checkpoint: docs/hosts.md has it in prose.
//
// Owner:     cluster. Callers: head (ckpt run --hosts), agents (ckpt agent), the explorer in the tests.
// Never:     does I/O, looks at a clock, allocates beyond the list of actions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ckpt::cluster {

// How far a host has come. Each step but kNone answers an order: kPrepared answers kPrepare, kStanding kStop,
// kDrained kDrain, kSampled kSample, kDurable kGo (order_to()).
enum class Step : uint8_t {
  kNone = 0,
  kPrepared,  // its processes are armed and make no more processes; they run
  kStanding,  // all its threads stand
  kDrained,   // what they had sent to other hosts has arrived there
  kSampled,   // what is shared and what waits in connections is in the image
  kDurable,   // its part has its final name on its disk; its threads have gone on since kGo
};

enum class Order : uint8_t {
  kPrepare = 0,
  kStop,
  kDrain,
  kSample,
  kGo,      // threads go on; write
  kCommit,  // the checkpoint counts
  kAbort,   // the checkpoint does not count: go on, and remove the part
};
inline constexpr size_t kOrders = 7;

// The order by which a host comes to `step`.
constexpr Order order_to(Step step) { return static_cast<Order>(static_cast<uint8_t>(step) - 1); }
constexpr Step next_step(Step step) { return static_cast<Step>(static_cast<uint8_t>(step) + 1); }

const char* name_of(Step step);
const char* name_of(Order order);

}  // namespace ckpt::cluster
