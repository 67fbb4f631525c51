#include "libckpt_rt/checkpoint/stages/stopped_samplers.h"

#include <iterator>

#include "libckpt_rt/core/kernel/current_processor.h"
#include "libckpt_rt/core/threads/thread_credentials.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

OtherThreads StoppedSamplers::threads() {
  return {this,
          [](void* self, void (*work)(void*), void* argument) {
            static_cast<StoppedSamplers*>(self)->start(work, argument);
          },
          [](void* self) { static_cast<StoppedSamplers*>(self)->await(); }};
}

// The first thread must not come to our processor, and hold us up; the second not to that of the first. A
// virtual processor at rest does not count as idle for the kernel: a woken thread comes to its last
// processor, or to ours.
void StoppedSamplers::start(void (*work)(void*), void* argument) {
  const uint32_t busy = count_ == 0 ? current_processor() : slots_[0]->processor;
  ThreadSlot* chosen = nullptr;
  for (uint32_t i = 0; i < StopWorld::kFirstArrived; ++i) {
    ThreadSlot* slot = stop_state.world.first_arrived(i);
    if (slot == nullptr || (count_ != 0 && slot == slots_[0])) continue;
    if (chosen == nullptr || (chosen->processor == busy && slot->processor != busy)) chosen = slot;
  }
  if (chosen == nullptr || count_ == std::size(slots_)) return;
  slots_[count_++] = chosen;
  if (count_ != 1) return stop_state.world.start_on(*chosen, work, argument);
  first_ = {work, argument};
  stop_state.world.start_on(*chosen, &sample_and_begin_rest, this);
}

void StoppedSamplers::sample_and_begin_rest(void* self) {
  auto& samplers = *static_cast<StoppedSamplers*>(self);
  samplers.first_.work(samplers.first_.argument);
  if (!is_under_filters()) samplers.begin_rest();
}

void StoppedSamplers::await() {
  while (count_ != 0) stop_state.world.await(*slots_[--count_]);
}

}  // namespace ckpt
