// relay: each thread makes the next one and ends, so that at every moment a thread ends and another is new.
// Whoever lists the threads meanwhile has to find the one that carries the work.
#include <pthread.h>

#include <condition_variable>
#include <mutex>

#include "tests/programs/victim.h"

namespace {

using namespace victim;

struct Relay {
  std::mutex lock;
  std::condition_variable changed;
  unsigned running = 0;
};

struct Chain {
  Relay* relay = nullptr;
  uint64_t left = 0, sum = 0;  // whose thread it is hands them to the next
};

void* link(void* argument) {
  auto& chain = *static_cast<Chain*>(argument);
  chain.sum = mix(chain.sum + chain.left);
  if (--chain.left != 0) {
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 64 << 10);
    pthread_t next;
    require_zero(pthread_create(&next, &detached, link, argument), "pthread_create");
    pthread_attr_destroy(&detached);
    return nullptr;
  }
  Relay& relay = *chain.relay;
  std::lock_guard hold(relay.lock);
  if (--relay.running == 0) relay.changed.notify_one();
  return nullptr;
}

std::string pass_on(unsigned chains, uint64_t links) {
  std::vector<Chain> all(chains);
  Relay relay;
  relay.running = chains;
  for (unsigned i = 0; i < chains; ++i) {
    all[i] = {&relay, links, i};
    std::thread(link, &all[i]).detach();
  }
  std::unique_lock hold(relay.lock);
  relay.changed.wait(hold, [&] { return relay.running == 0; });
  uint64_t sum = 0;
  for (const Chain& c : all) {
    require(c.left == 0, "relay: a chain ended early, {} links are left", c.left);
    sum = mix(sum ^ c.sum);
  }
  return fmt::format("{} chains of {} threads each: {:016x}", chains, links, sum);
}

}  // namespace

int main(int argc, char** argv) {
  return run_victim({"relay",
                     "Threads that each make the next one and end.",
                     {{"relay", "one chain of threads", 40'000, [](uint64_t n) { return pass_on(1, n); }},
                      {"relays", "two at a time", 40'000, [](uint64_t n) { return pass_on(2, n); }}}},
                    argc, argv);
}
