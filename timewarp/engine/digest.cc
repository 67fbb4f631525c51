#include "timewarp/engine/digest.h"

#include <xxhash.h>

#include <cstring>

#include "base/result.h"
#include "timewarp/engine/setup.h"

namespace ckpt::timewarp {

uint64_t digest_of(const Event& event) {
  struct {
    double time;
    uint64_t order;
    uint32_t sender, receiver;
  } head{event.time, event.order, event.sender, event.receiver};
  return XXH3_64bits_withSeed(event.message(), event.bytes, XXH3_64bits(&head, sizeof(head)));
}

uint64_t digest_of(const ckpt_tw_lp& lp, uint64_t sent, const void* state, size_t bytes) {
  const uint64_t head[] = {lp.id, lp.random, sent, bytes};
  return XXH3_64bits_withSeed(state, bytes, XXH3_64bits(head, sizeof(head)));
}

std::string wrong_send(const ckpt_tw_model& model, uint32_t to, double delay, size_t bytes) {
  if (!(delay >= 0)) {
    return fmt::format(
        "it sends to LP {} with a delay of {}: a delay is 0 or more, nothing can be sent into the past", to,
        delay);
  }
  if (to >= model.lps) return fmt::format("it sends to LP {}, but the LPs are 0 to {}", to, model.lps - 1);
  return fmt::format("it sends a message of {} bytes, but the model declares {}: raise message_bytes", bytes,
                     model.message_bytes);
}

std::string state_too_large(const ckpt_tw_model& model, size_t bytes) {
  return fmt::format("its state grows to {} bytes, but the model declares {}: raise state_bytes", bytes,
                     model.state_bytes);
}

std::string name_of(const Key& key, uint32_t receiver) {
  return fmt::format("LP {}, event at time {} (message {} of LP {})", receiver, key.time,
                     key.order & ((uint64_t{1} << kCountBits) - 1), key.sender);
}

}  // namespace ckpt::timewarp
