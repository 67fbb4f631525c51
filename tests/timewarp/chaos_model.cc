#include "tests/timewarp/chaos_model.h"

#include <cstring>
#include <limits>

namespace timewarp_test {

namespace {

struct State {
  uint64_t events, mixed;
  uint8_t more[kMostState - 16];
};
static_assert(sizeof(State) == kMostState);

struct Message {
  uint64_t value;
  uint32_t carries;  // another message follows from it
  uint32_t spare;
};

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ull;
constexpr uint64_t kInverse = 0xf1de83e19937733dull;
static_assert(kOdd * kInverse == 1);
constexpr size_t kHead = 16, kPiece = 24;

const Chaos& chaos_of(const ckpt_tw_lp* lp) { return *static_cast<const Chaos*>(ckpt_tw_context(lp)); }

double delay_of(ckpt_tw_lp* lp, const Chaos& c) {
  if (c.jump > 0 && ckpt_tw_below(lp, 16) == 0) return c.jump * ckpt_tw_uniform(lp);
  if (c.steps == 0) return ckpt_tw_exponential(lp, c.delay) + (c.zero ? 0 : 0.01);
  const uint32_t n = ckpt_tw_below(lp, c.steps);
  if (n == 0 && !c.zero) return c.delay;
  return c.delay * n;
}

void send_one(ckpt_tw_lp* lp, const Chaos& c, uint64_t value) {
  const Message message{value, 1, 0};
  const uint32_t to = ckpt_tw_below(lp, c.lps);
  double delay = delay_of(lp, c);
  // Chains without delay must end.
  if (delay == 0 && ckpt_tw_below(lp, 4) == 0) delay = c.delay;
  ckpt_tw_send(lp, to, delay, &message, sizeof(message));
}

void init(ckpt_tw_lp* lp, void*) {
  const Chaos& c = chaos_of(lp);
  if (c.grow) ckpt_tw_resize(lp, kHead);
  for (uint32_t i = 0; i < c.events; ++i) send_one(lp, c, i);
}

uint64_t bits_of(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

void misbehave(ckpt_tw_lp* lp, const Chaos& c) {
  const Message message{};
  static const char kLarge[sizeof(Message) + 1] = {};
  switch (c.fault) {
    case kIntoThePast:
      return ckpt_tw_send(lp, 0, -0.5, &message, sizeof(message));
    case kNoSuchLp:
      return ckpt_tw_send(lp, c.lps, 1, &message, sizeof(message));
    case kMessageTooLarge:
      return ckpt_tw_send(lp, 0, 1, kLarge, sizeof(kLarge));
    case kStateTooLarge:
      return ckpt_tw_resize(lp, kMostState + 1);
    case kOwnError:
      return ckpt_tw_fail(lp, "the model's own words");
    case kForever: {
      const Message again{0, 2, 0};
      return ckpt_tw_send(lp, lp->id, 0, &again, sizeof(again));
    }
    default:
      return;
  }
}

void event(ckpt_tw_lp* lp, void* memory, const void* bytes, size_t) {
  const Chaos& c = chaos_of(lp);
  auto* state = static_cast<State*>(memory);
  Message message;
  std::memcpy(&message, bytes, sizeof(message));
  ckpt_tw_save(lp, state, kHead);
  ++state->events;
  state->mixed = state->mixed * kOdd + bits_of(lp->now) + message.value;
  if (c.grow) {
    const size_t size = ckpt_tw_size(lp);
    if (c.shrink && (state->events & 15) == 0) {
      ckpt_tw_resize(lp, kHead + (size - kHead) / 2);
    } else if (size + kPiece <= kMostState) {
      ckpt_tw_resize(lp, size + kPiece);
      // Added to what is there: shows if it is not zero.
      ckpt_tw_save(lp, reinterpret_cast<uint8_t*>(state) + size, kPiece);
      for (size_t i = 0; i < kPiece; ++i) {
        reinterpret_cast<uint8_t*>(state)[size + i] += static_cast<uint8_t>(state->mixed >> (i % 8 * 8));
      }
    }
  }
  if (message.carries == 2) return misbehave(lp, c);
  if (c.fault != kNone && lp->id == c.fault_lp && state->events >= c.fault_event) misbehave(lp, c);
  if (message.carries == 0) return;
  if (c.burst != 0 && ckpt_tw_below(lp, c.burst) == 0) {
    const Message word{state->mixed, 0, 0};
    const double delay = delay_of(lp, c);
    for (uint32_t to = 0; to < c.lps; ++to) ckpt_tw_send(lp, to, delay, &word, sizeof(word));
  }
  send_one(lp, c, state->mixed);
}

void reverse(ckpt_tw_lp* lp, void* memory, const void* bytes, size_t) {
  const Chaos& c = chaos_of(lp);
  auto* state = static_cast<State*>(memory);
  Message message;
  std::memcpy(&message, bytes, sizeof(message));
  if (c.grow) {
    const size_t size = ckpt_tw_size(lp);
    // The last one may have found no room.
    if (size == kHead + kPiece * state->events) ckpt_tw_resize(lp, size - kPiece);
  }
  state->mixed = (state->mixed - message.value - bits_of(lp->now)) * kInverse;
  if (c.fault == kBadInverse && lp->id == c.fault_lp && state->events >= c.fault_event) return;
  --state->events;
}

ckpt_tw_saving saving_of(uint32_t lp, void*) {
  switch (lp % 6) {
    case 0:
      return {CKPT_TW_COPY, 1, 0};
    case 1:
      return {CKPT_TW_COPY, 3, 0};
    case 2:
      return {CKPT_TW_INCREMENTAL, 1, 0};
    case 3:
      return {CKPT_TW_REVERSE, 1, 0};
    case 4:
      return {CKPT_TW_CCL, 1, 0};
    default:
      return {CKPT_TW_COPY, 0, 0};
  }
}

}  // namespace

ckpt_tw_model chaos_model(const Chaos& chaos) {
  ckpt_tw_model model{};
  model.lps = chaos.lps;
  model.state_bytes = sizeof(State);
  model.message_bytes = sizeof(Message);
  model.init = init;
  model.event = event;
  model.reverse = chaos.shrink ? nullptr : reverse;
  if (chaos.mix) model.saving_of = saving_of;
  model.context = const_cast<Chaos*>(&chaos);
  return model;
}

}  // namespace timewarp_test
