#include <pthread.h>

#include <memory>
#include <stdexcept>

#include "tests/programs/threads/threads.h"

namespace threads {

using namespace victim;

namespace {

class Problem : public std::runtime_error {
 public:
  explicit Problem(uint64_t v) : std::runtime_error("problem"), value(v) {}
  uint64_t value;
};

struct Counted {
  explicit Counted(uint64_t& counter) : alive(counter) { ++alive; }
  ~Counted() { --alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  uint64_t& alive;
};

__attribute__((noinline)) uint64_t descend(uint64_t depth, uint64_t value, uint64_t& alive) {
  Counted counted(alive);
  if (depth == 0) throw Problem(value);
  uint64_t result;
  if (depth % 7 == 0) {
    try {
      result = descend(depth - 1, value, alive);
    } catch (const std::logic_error&) {
      broken("exceptions: caught as the wrong type");
    }
  } else {
    result = descend(depth - 1, value, alive);
  }
  return result + 1;
}

}  // namespace

std::string exceptions(uint64_t iterations) {
  constexpr unsigned kThreads = 2;
  std::exception_ptr passed[kThreads];
  run_threads(kThreads, [&](unsigned t) {
    uint64_t alive = 0, caught = 0;
    for (uint64_t n = 0; n < iterations; ++n) {
      try {
        descend(n % 30, n, alive);
        broken("exceptions: nothing was thrown");
      } catch (const Problem& p) {
        require(p.value == n && alive == 0, "exceptions: value {} in step {}, {} objects alive", p.value, n,
                alive);
        ++caught;
        if (n + 1 == iterations) passed[t] = std::current_exception();
      }
    }
    require(caught == iterations, "exceptions: {} caught", caught);
  });
  for (auto& p : passed) {
    try {
      std::rethrow_exception(p);
    } catch (const Problem& problem) {
      require(problem.value == iterations - 1, "exceptions: {} came from the thread", problem.value);
    }
  }
  return fmt::format("{} caught", kThreads * iterations);
}

namespace {

std::atomic<uint64_t> local_objects{0};
std::atomic<uint64_t> key_calls{0};

class Local {
 public:
  Local() : values_(100, 7) { local_objects.fetch_add(1); }
  ~Local() {
    for (uint64_t v : values_) require(v == expected_, "locals: destroyed with {}, not {}", v, expected_);
    local_objects.fetch_sub(1);
  }
  void add(uint64_t n) {
    for (uint64_t& v : values_) v += n;
    expected_ += n;
  }

 private:
  std::vector<uint64_t> values_;
  uint64_t expected_ = 7;
};

thread_local Local local;

}  // namespace

std::string locals(uint64_t iterations) {
  pthread_key_t key;
  require_zero(pthread_key_create(&key,
                                  [](void* p) {
                                    key_calls.fetch_add(*static_cast<uint64_t*>(p));
                                    delete static_cast<uint64_t*>(p);
                                  }),
               "pthread_key_create");
  for (uint64_t n = 0; n < iterations; n += 4) {
    std::vector<std::thread> some;
    for (unsigned t = 0; t < 4; ++t) {
      some.emplace_back([&, t] {
        require_zero(pthread_setspecific(key, new uint64_t(1)), "pthread_setspecific");
        for (uint64_t i = 0; i < 50; ++i) {
          local.add(t + i);
          if (i % 10 == 0) std::this_thread::yield();
        }
        require(*static_cast<uint64_t*>(pthread_getspecific(key)) == 1, "locals: pthread_getspecific");
      });
    }
    for (auto& t : some) t.join();
    require(local_objects.load() == 0, "locals: {} objects left", local_objects.load());
    require(key_calls.load() == n + 4, "locals: {} destructor calls after {} threads", key_calls.load(),
            n + 4);
  }
  pthread_key_delete(key);
  return fmt::format("{} threads with thread_local objects", key_calls.load());
}

namespace {
// The thread does not end before it is detached. pthread_detach(3) of libc looks at the thread once more
// after it has detached it. A thread that ends in between has given its stack back, and the look is a
// SIGSEGV.
template <typename Work>
void start_detached(Work work) {
  auto is_detached = std::make_shared<std::atomic<bool>>(false);
  std::thread([work, is_detached] {
    work();
    while (!is_detached->load()) std::this_thread::yield();
  }).detach();
  is_detached->store(true);
}
}  // namespace

std::string detached(uint64_t iterations) {
  std::atomic<uint64_t> ended{0};
  for (uint64_t n = 0; n < iterations; ++n) {
    start_detached([&, n] {
      start_detached([&, n] {
        volatile uint64_t x = n;
        for (int i = 0; i < 2000; ++i) x = mix(x);
        ended.fetch_add(1);
      });
    });
    while (ended.load() + 50 < n) std::this_thread::yield();
  }
  while (ended.load() < iterations) std::this_thread::yield();
  return fmt::format("{} detached threads", 2 * iterations);
}

}  // namespace threads
