#include "libckpt_rt/checkpoint/requests.h"

#include <cstring>
#include <new>

#include "base/memory/fork_path.h"
#include "libckpt_rt/checkpoint/account/progress.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/threads/late_signals.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::agent {

constinit Queue queue;
CKPT_FORK_DATA constinit AgentWords words;

CKPT_FORK_PATH bool is_idle() { return !words.running && words.count == 0 && words.absences == 0; }

namespace {

void tell_restarted(OwnRequest* own, uint32_t generation) {
  if (own == nullptr) return;
  own->ok = true;
  own->restarted = generation;
  own->done.store(1, std::memory_order_release);
}

}  // namespace

void reset(uint32_t generation) {
  new (&queue.lock) FutexLock<LockRank::kRequests>;
  statistics::reset_after_restart();
  if (generation != 0) {
    // Also threads whose request waited in the queue: the agent that would serve it is not in the image.
    tell_restarted(queue.answering, generation);
    for (uint32_t i = 0; i < words.count; ++i)
      tell_restarted(queue.ring[(queue.head + i) % kRing].own, generation);
  }
  queue.head = words.count = words.absences = 0;
  words.running = queue.waiting = false;
  late_signals::forget();
  checkpoint_progress::tell(-1);  // the socket was the agent's
  queue.answering = nullptr;
  preparation::reset(generation);
}

void save_requests(WaitingRequests& saved) {
  static_assert(sizeof(WaitingRequests::ring) == kRing * sizeof(Request));
  std::memcpy(static_cast<void*>(saved.ring), queue.ring, sizeof(queue.ring));
  saved.head = queue.head;
  saved.count = words.count;
}

void put_back_requests(const WaitingRequests& saved, uint32_t generation) {
  reset(generation);
  for (uint32_t i = 0; i < saved.count; ++i) {
    const Request& request = saved.ring[(saved.head + i) % kRing];
    // A thread of the program that asked does not wait any more: it has gone back.
    if (request.own == nullptr) queue.ring[words.count++] = request;
  }
  words.running = true;
}

}  // namespace ckpt::agent
