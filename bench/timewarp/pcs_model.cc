#include "bench/timewarp/pcs_model.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace timewarp_bench {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Cell {
  int64_t channels, reserved;  // free
  uint64_t calls, busy_lines, blocked, completed, moved_in, moved_out, dropped;
  uint64_t events, mixed;  // of all events in their order
  uint64_t x, y;
};
static_assert(sizeof(Cell) == 104);  // as in the paper

enum Kind : uint32_t { kCall, kCompletion, kMoveOut, kMoveIn };

// A portable, and what it does next.
struct Portable {
  double call, completion, move;  // when; completion: kNever without a call
  Kind kind;
  uint32_t channel;  // 1: of the ordinary, 2: of the reserved
  uint64_t spare;
};
static_assert(sizeof(Portable) == 40);  // as in the paper

// What an event did, for its inverse.
enum Did : uint64_t {
  kNothing,
  kBusy,
  kBlocked,
  kConnected,
  kFreed,
  kFreedReserved,
  kTook,
  kTookReserved,
  kDropped
};

const PcsParameters& parameters_of(const ckpt_tw_lp* lp) {
  return *static_cast<const PcsParameters*>(ckpt_tw_context(lp));
}

void schedule(ckpt_tw_lp* lp, Portable& portable) {
  const double next = std::min({portable.call, portable.completion, portable.move});
  portable.kind = next == portable.move ? kMoveOut : next == portable.completion ? kCompletion : kCall;
  ckpt_tw_send(lp, lp->id, next - lp->now, &portable, sizeof(portable));
}

void init(ckpt_tw_lp* lp, void* state) {
  const PcsParameters& p = parameters_of(lp);
  auto* cell = static_cast<Cell*>(state);
  cell->channels = p.channels - p.reserved;
  cell->reserved = p.reserved;
  cell->x = lp->id % p.width;
  cell->y = lp->id / p.width;
  for (uint32_t i = 0; i < p.portables; ++i) {
    Portable portable{};
    portable.call = ckpt_tw_exponential(lp, p.call_interval);
    portable.completion = kNever;
    portable.move = ckpt_tw_exponential(lp, p.residence);
    schedule(lp, portable);
  }
}

uint32_t neighbour(const PcsParameters& p, const Cell& cell, uint32_t direction) {
  uint64_t x = cell.x, y = cell.y;
  switch (direction) {
    case 0:
      x = x + 1 == p.width ? 0 : x + 1;
      break;
    case 1:
      x = x == 0 ? p.width - 1 : x - 1;
      break;
    case 2:
      y = y + 1 == p.height ? 0 : y + 1;
      break;
    default:
      y = y == 0 ? p.height - 1 : y - 1;
      break;
  }
  return static_cast<uint32_t>(y * p.width + x);
}

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ull, kInverse = 0xf1de83e19937733dull;
static_assert(kOdd * kInverse == 1);

uint64_t bits_of(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

Did release(Cell& cell, const Portable& portable) {
  if (portable.completion == kNever) return kNothing;
  ++(portable.channel == 2 ? cell.reserved : cell.channels);
  return portable.channel == 2 ? kFreedReserved : kFreed;
}

void event(ckpt_tw_lp* lp, void* state, const void* message, size_t) {
  const PcsParameters& p = parameters_of(lp);
  auto& cell = *static_cast<Cell*>(state);
  Portable portable;
  std::memcpy(&portable, message, sizeof(portable));
  ckpt_tw_save(lp, state, sizeof(cell));
  ++cell.events;
  cell.mixed = cell.mixed * kOdd + bits_of(lp->now);
  uint64_t did = kNothing;
  switch (portable.kind) {
    case kCall:
      ++cell.calls;
      portable.call = lp->now + ckpt_tw_exponential(lp, p.call_interval);
      if (portable.completion != kNever) {
        ++cell.busy_lines;
        did = kBusy;
      } else if (cell.channels == 0) {
        ++cell.blocked;
        did = kBlocked;
      } else {
        --cell.channels;
        portable.channel = 1;
        portable.completion = lp->now + ckpt_tw_exponential(lp, p.call_time);
        did = kConnected;
      }
      break;
    case kCompletion:
      ++cell.completed;
      did = release(cell, portable);
      portable.completion = kNever;
      break;
    case kMoveOut: {
      ++cell.moved_out;
      did = release(cell, portable);
      *ckpt_tw_bits(lp) = did;
      portable.kind = kMoveIn;
      // What would have happened on the way happens on arrival.
      const uint32_t to = neighbour(p, cell, ckpt_tw_below(lp, 4));
      return ckpt_tw_send(lp, to, p.lookahead, &portable, sizeof(portable));
    }
    case kMoveIn:
      ++cell.moved_in;
      portable.move = lp->now + ckpt_tw_exponential(lp, p.residence);
      portable.call = std::max(portable.call, lp->now);
      if (portable.completion != kNever) {
        portable.completion = std::max(portable.completion, lp->now);
        if (cell.channels > 0) {
          --cell.channels;
          portable.channel = 1;
          did = kTook;
        } else if (cell.reserved > 0) {
          --cell.reserved;
          portable.channel = 2;
          did = kTookReserved;
        } else {
          ++cell.dropped;
          portable.completion = kNever;
          did = kDropped;
        }
      }
      break;
  }
  *ckpt_tw_bits(lp) = did;
  schedule(lp, portable);
}

void reverse(ckpt_tw_lp* lp, void* state, const void* message, size_t) {
  auto& cell = *static_cast<Cell*>(state);
  Portable portable;
  std::memcpy(&portable, message, sizeof(portable));
  switch (static_cast<Did>(*ckpt_tw_bits(lp))) {
    case kNothing:
      break;
    case kBusy:
      --cell.busy_lines;
      break;
    case kBlocked:
      --cell.blocked;
      break;
    case kConnected:
      ++cell.channels;
      break;
    case kFreed:
      --cell.channels;
      break;
    case kFreedReserved:
      --cell.reserved;
      break;
    case kTook:
      ++cell.channels;
      break;
    case kTookReserved:
      ++cell.reserved;
      break;
    case kDropped:
      --cell.dropped;
      break;
  }
  switch (portable.kind) {
    case kCall:
      --cell.calls;
      break;
    case kCompletion:
      --cell.completed;
      break;
    case kMoveOut:
      --cell.moved_out;
      break;
    case kMoveIn:
      --cell.moved_in;
      break;
  }
  cell.mixed = (cell.mixed - bits_of(lp->now)) * kInverse;
  --cell.events;
}

}  // namespace

ckpt_tw_model pcs_model(const PcsParameters& parameters) {
  ckpt_tw_model model{};
  model.lps = parameters.width * parameters.height;
  model.state_bytes = sizeof(Cell);
  model.message_bytes = sizeof(Portable);
  model.init = init;
  model.event = event;
  model.reverse = reverse;
  model.context = const_cast<PcsParameters*>(&parameters);
  return model;
}

}  // namespace timewarp_bench
