#include <pthread.h>

#include <cstring>

#include "tests/programs/churn/churn.h"

namespace churn {

using namespace victim;

namespace {

thread_local uint64_t counter = 77;
thread_local char text[600] = "thread-local";

std::atomic<uint64_t> ended{0};
std::atomic<uint64_t> destroyed{0};

struct CountsDestruction {
  uint64_t value = 5;
  ~CountsDestruction() {
    if (value == 6) destroyed.fetch_add(1);
  }
};
thread_local CountsDestruction counts;

void* body(void* argument) {
  auto n = reinterpret_cast<uint64_t>(argument);
  require(counter == 77 && std::strcmp(text, "thread-local") == 0 && counts.value == 5,
          "threads: thread {} begins with counter {} text {:.20}", n, counter, text);
  counter += n;
  counts.value = 6;
  volatile std::byte stack[20'000];
  for (size_t i = 0; i < sizeof(stack); i += 1024) stack[i] = static_cast<std::byte>(n + i);
  if (n % 16 == 0) std::this_thread::yield();
  for (size_t i = 0; i < sizeof(stack); i += 1024) {
    require(stack[i] == static_cast<std::byte>(n + i), "threads: the stack of thread {} changed", n);
  }
  require(counter == 77 + n, "threads: counter of thread {} is {}", n, counter);
  ended.fetch_add(1);
  return reinterpret_cast<void*>(n * 3);
}

}  // namespace

std::string threads(uint64_t iterations) {
  uint64_t started = 0;
  for (uint64_t n = 0; n < iterations; n += 4) {
    pthread_t ids[4];
    bool detached[4];
    for (uint64_t i = 0; i < 4; ++i) {
      pthread_attr_t attributes;
      pthread_attr_init(&attributes);
      pthread_attr_setstacksize(&attributes, (64 + (n + i) % 5 * 64) << 10);
      detached[i] = (n + i) % 7 == 0;
      if (detached[i]) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
      require_zero(pthread_create(&ids[i], &attributes, body, reinterpret_cast<void*>(n + i)),
                   "pthread_create");
      pthread_attr_destroy(&attributes);
      ++started;
    }
    for (uint64_t i = 0; i < 4; ++i) {
      if (detached[i]) continue;
      void* result = nullptr;
      require_zero(pthread_join(ids[i], &result), "pthread_join");
      require(result == reinterpret_cast<void*>((n + i) * 3), "threads: thread {} returned {}", n + i,
              result);
    }
  }
  while (ended.load() != started || destroyed.load() != started) std::this_thread::yield();
  return fmt::format("{} threads started and ended", started);
}

}  // namespace churn
