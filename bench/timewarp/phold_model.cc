#include "bench/timewarp/phold_model.h"

#include <algorithm>
#include <cstring>

namespace timewarp_bench {

namespace {

// The head of the state; the rest is written in turn, `touch` bytes an event.
struct State {
  uint64_t events;
  uint64_t mixed;  // of all events in their order: shows if one was lost, doubled or out of order
  double last;
  uint64_t work;
};

struct Message {
  uint64_t hops;
};

const PholdParameters& parameters_of(const ckpt_tw_lp* lp) {
  return *static_cast<const PholdParameters*>(ckpt_tw_context(lp));
}

void schedule(ckpt_tw_lp* lp, const PholdParameters& p, Message message) {
  const uint32_t to = ckpt_tw_uniform(lp) < p.remote ? ckpt_tw_below(lp, p.lps) : lp->id;
  ckpt_tw_send(lp, to, p.lookahead + ckpt_tw_exponential(lp, p.mean), &message, sizeof(message));
}

void init(ckpt_tw_lp* lp, void*) {
  const PholdParameters& p = parameters_of(lp);
  for (uint32_t i = 0; i < p.events; ++i) schedule(lp, p, {0});
}

// Invertible: x -> x * odd + y + z.
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ull;
constexpr uint64_t inverse_of(uint64_t odd) {
  uint64_t x = odd;
  for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
  return x;
}
static_assert(kOdd * inverse_of(kOdd) == 1);

uint64_t bits_of(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The bytes of the state that event number `n` writes: each is one more than it was.
template <typename Byte>
void touch(ckpt_tw_lp* lp, const PholdParameters& p, void* state, uint64_t n, Byte byte) {
  const size_t room = p.state_bytes - sizeof(State);
  if (p.touch == 0 || room == 0) return;
  auto* bytes = static_cast<uint8_t*>(state) + sizeof(State);
  const size_t count = std::min<size_t>(p.touch, room);
  const size_t at = n * count % (room - count + 1);
  ckpt_tw_save(lp, bytes + at, count);
  for (size_t i = 0; i < count; ++i) byte(bytes[at + i]);
}

void event(ckpt_tw_lp* lp, void* memory, const void* bytes, size_t) {
  const PholdParameters& p = parameters_of(lp);
  auto* state = static_cast<State*>(memory);
  Message message;
  std::memcpy(&message, bytes, sizeof(message));
  ckpt_tw_save(lp, state, sizeof(*state));
  *ckpt_tw_bits(lp) = bits_of(state->last);
  touch(lp, p, memory, state->events, [](uint8_t& b) { ++b; });
  ++state->events;
  state->mixed = state->mixed * kOdd + bits_of(lp->now) + message.hops;
  state->last = lp->now;
  for (uint32_t i = 0; i < p.grain; ++i) state->work = state->work * kOdd + i;
  ++message.hops;
  schedule(lp, p, message);
}

void reverse(ckpt_tw_lp* lp, void* memory, const void* bytes, size_t) {
  const PholdParameters& p = parameters_of(lp);
  auto* state = static_cast<State*>(memory);
  Message message;
  std::memcpy(&message, bytes, sizeof(message));
  for (uint32_t i = p.grain; i-- > 0;) state->work = (state->work - i) * inverse_of(kOdd);
  const uint64_t last = *ckpt_tw_bits(lp);
  std::memcpy(&state->last, &last, sizeof(last));
  state->mixed = (state->mixed - message.hops - bits_of(lp->now)) * inverse_of(kOdd);
  --state->events;
  touch(lp, p, memory, state->events, [](uint8_t& b) { --b; });
}

}  // namespace

ckpt_tw_model phold_model(const PholdParameters& parameters) {
  ckpt_tw_model model{};
  model.lps = parameters.lps;
  model.state_bytes = std::max<size_t>(parameters.state_bytes, sizeof(State));
  model.message_bytes = sizeof(Message);
  model.init = init;
  model.event = event;
  model.reverse = reverse;
  model.context = const_cast<PholdParameters*>(&parameters);
  return model;
}

}  // namespace timewarp_bench
