#include "libckpt_rt/agent.h"

#include <cstring>

#include "libckpt_rt/checkpoint_progress.h"
#include "libckpt_rt/control.h"
#include "libckpt_rt/library.h"

namespace ckpt::agent {

namespace {

constexpr uint32_t kRing = 16;
FutexLock lock;  // held for a few instructions, with all signals blocked
Request ring[kRing];
uint32_t head = 0, count = 0;
bool running = false;
OwnRequest* answering = nullptr;  // in an image: who waits for this very checkpoint

void main_loop(void*) {
  for (;;) {
    Request r;
    {
      ScopedLock guard(lock);
      if (count == 0) {
        // Under the lock: a request that comes after this starts a new agent.
        running = false;
        return;
      }
      r = ring[head];
      head = (head + 1) % kRing;
      --count;
    }
    if (r.own != nullptr) {
      answering = r.own;
      auto result = take_checkpoint();
      answering = nullptr;
      r.own->ok = result.ok();
      if (result.ok()) r.own->cost = *result;
      else r.own->error = result.error();
      r.own->done.store(1, std::memory_order_release);
      futex_wake(r.own->done);
    } else if (r.cookie == 0) {
      (void)take_checkpoint();  // the log and `ckpt stat` tell of a failure
    } else {
      serve_asker(r.cookie);
    }
  }
}

void count_failure_locked(const Error& error) {
  library.statistics.failures++;
  std::memcpy(library.statistics.last_error, error.text, sizeof(library.statistics.last_error));
}

}  // namespace

bool request(const Request& r) {
  ScopedLock guard(lock);
  // The interval never queues up behind itself.
  if (r.cookie == 0 && r.own == nullptr && running) return true;
  if (count == kRing) {
    count_failure_locked(make_error(ExitCode::kUnavailable, 0,
                                    "a request was refused: {} are waiting already; ask less often", kRing));
    return false;
  }
  ring[(head + count) % kRing] = r;
  ++count;
  if (running) return true;
  // The last agent has left its loop; its stack is free when the kernel says so.
  library.agent.join();
  if (long error = library.agent.spawn(&main_loop, nullptr, DescriptorTable::kOwnTable); error != 0) {
    --count;
    count_failure_locked(make_error(ExitCode::kUnavailable, static_cast<int>(error),
                                    "a request was refused: cannot start a thread ({}); raise the limit on processes",
                                    errno_name(static_cast<int>(error))));
    return false;
  }
  running = true;
  return true;
}

void count_success(const CheckpointCost& cost) {
  ScopedLock guard(lock);
  Statistics& s = library.statistics;
  s.checkpoints++;
  s.total_pause_ns += cost.pause_ns;
  if (cost.pause_ns > s.longest_pause_ns) s.longest_pause_ns = cost.pause_ns;
  std::memcpy(s.last_image, cost.image, sizeof(s.last_image));
}

void count_failure(const Error& error) {
  ScopedLock guard(lock);
  count_failure_locked(error);
}

Statistics statistics() {
  ScopedLock guard(lock);
  return library.statistics;
}

void reset(uint32_t generation) {
  new (&lock) FutexLock;
  head = count = 0;
  running = false;
  checkpoint_progress::tell(-1);  // the socket was the agent's
  if (generation != 0 && answering != nullptr) {
    answering->ok = true;
    answering->restarted = generation;
    answering->done.store(1, std::memory_order_release);
  }
  answering = nullptr;
}

}  // namespace ckpt::agent
