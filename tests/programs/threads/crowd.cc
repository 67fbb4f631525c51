#include <condition_variable>
#include <mutex>

#include "tests/programs/threads/threads.h"

namespace threads {

using namespace victim;

std::string crowd(uint64_t iterations) {
  constexpr unsigned kThreads = 128;
  struct Place {
    std::mutex mutex;
    std::condition_variable arrived;
    bool token = false;
  };
  std::vector<Place> places(kThreads);
  std::atomic<uint64_t> step{0};
  places[0].token = true;
  run_threads(kThreads, [&](unsigned t) {
    for (uint64_t n = t; n < iterations; n += kThreads) {
      {
        std::unique_lock lock(places[t].mutex);
        places[t].arrived.wait(lock, [&] { return places[t].token; });
        places[t].token = false;
      }
      uint64_t now = step.fetch_add(1);
      require(now == n, "crowd: thread {} has the token in step {}, not {}", t, now, n);
      Place& next = places[(t + 1) % kThreads];
      std::lock_guard lock(next.mutex);
      require(!next.token, "crowd: two tokens at thread {}", (t + 1) % kThreads);
      next.token = true;
      next.arrived.notify_one();
    }
  });
  return fmt::format("{} steps by {} threads", step.load(), kThreads);
}

}  // namespace threads
