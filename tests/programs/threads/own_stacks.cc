#include <pthread.h>
#include <sys/mman.h>

#include <vector>

#include "tests/programs/threads/threads.h"

namespace threads {

using namespace victim;

namespace {

constexpr unsigned kThreads = 4;
constexpr size_t kPages = 64;  // of a stack; libc puts the descriptor of the thread at its end

struct OnOwnStack {
  std::byte* stack = nullptr;
  pthread_t thread{};
  uint64_t iterations = 0, sum = 0;
};

// Each frame has a page of its own, which is looked at again on the way back.
__attribute__((noinline)) uint64_t descend(const OnOwnStack& own, uint64_t n, unsigned depth) {
  volatile uint64_t page[kPage / sizeof(uint64_t)];
  page[0] = mix(n + depth);
  const auto at = reinterpret_cast<std::byte*>(const_cast<uint64_t*>(page));
  require(at >= own.stack && at < own.stack + kPages * kPage, "own stacks: a frame is elsewhere");
  const uint64_t below = depth == 0 ? 0 : descend(own, n, depth - 1);
  require(page[0] == mix(n + depth), "own stacks: frame {} of step {} has changed", depth, n);
  return below + page[0];
}

void* body(void* argument) {
  auto& own = *static_cast<OnOwnStack*>(argument);
  for (uint64_t n = 0; n < own.iterations; ++n) own.sum += descend(own, n, 20);
  return argument;
}

}  // namespace

std::string own_stacks(uint64_t iterations) {
  std::vector<OnOwnStack> all(kThreads);
  for (OnOwnStack& own : all) {
    own.stack = map_pages(kPages);
    own.iterations = iterations;
    pthread_attr_t attributes;
    require_zero(pthread_attr_init(&attributes), "pthread_attr_init");
    require_zero(pthread_attr_setstack(&attributes, own.stack, kPages * kPage), "pthread_attr_setstack");
    require_zero(pthread_create(&own.thread, &attributes, body, &own), "pthread_create");
    pthread_attr_destroy(&attributes);
  }
  for (OnOwnStack& own : all) {
    void* result = nullptr;
    require_zero(pthread_join(own.thread, &result), "pthread_join");
    require(result == &own && own.sum == all[0].sum, "own stacks: a thread has another sum");
    require_call(munmap(own.stack, kPages * kPage) == 0, "munmap");
  }
  return fmt::format("{}", all[0].sum);
}

}  // namespace threads
