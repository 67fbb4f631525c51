// limits: lives close to its resource limits, and they stay what they are.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <mutex>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tests/programs/victim.h"

namespace {

using namespace victim;

constexpr rlim_t kDescriptors = 14;
constexpr uint64_t kSpare = 512ull << 20;  // bytes of address space beyond what there is at the start

void set_limit(__rlimit_resource resource, rlim_t soft) {
  rlimit limit;
  require_call(getrlimit(resource, &limit) == 0, "getrlimit");
  limit.rlim_cur = soft;
  require_call(setrlimit(resource, &limit) == 0, "setrlimit");
}
void require_limit(__rlimit_resource resource, rlim_t soft) {
  rlimit limit;
  require_call(getrlimit(resource, &limit) == 0, "getrlimit");
  require(limit.rlim_cur == soft, "limits: limit {} became {}, not {}", static_cast<int>(resource),
          limit.rlim_cur, soft);
}

// Held while one exercise opens files: the other one counts free descriptors.
std::mutex opening;

std::string address_space(uint64_t iterations) {
  std::unique_lock alone(opening);
  unsigned long pages = 0;
  std::FILE* statm = std::fopen("/proc/self/statm", "re");
  require_call(statm != nullptr && std::fscanf(statm, "%lu", &pages) == 1, "/proc/self/statm");
  std::fclose(statm);
  alone.unlock();
  const rlim_t limit = pages * kPage + kSpare;
  set_limit(RLIMIT_AS, limit);
  constexpr uint64_t kSome = 16 << 20;
  for (uint64_t n = 0; n < iterations; ++n) {
    require_limit(RLIMIT_AS, limit);
    // The limit counts what is mapped already. (Not just a little beyond the limit: other threads' memory
    // may have been given back since it was measured, such as what malloc trims of a new arena.)
    void* p = mmap(nullptr, limit, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(p == MAP_FAILED && errno == ENOMEM, "limits: {} bytes beyond the limit were mapped", limit);
    std::byte* some = map_pages(kSome / kPage);
    for (uint64_t i = 0; i < kSome; i += 16 * kPage)
      word_at(some + i).store(n + i, std::memory_order_relaxed);
    for (uint64_t i = 0; i < kSome; i += 16 * kPage)
      require(word_at(some + i).load() == n + i, "limits: memory changed");
    munmap(some, kSome);
  }
  return fmt::format("{} times at the limit", iterations);
}

std::string descriptors(uint64_t iterations) {
  set_limit(RLIMIT_NOFILE, kDescriptors);
  int first = -1;
  for (uint64_t n = 0; n < iterations; ++n) {
    require_limit(RLIMIT_NOFILE, kDescriptors);
    std::lock_guard alone(opening);
    std::vector<int> fds;
    int fd;
    while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) fds.push_back(fd);
    require(errno == EMFILE, "limits: open fails with {}", std::strerror(errno));
    require(!fds.empty() && fds.back() == static_cast<int>(kDescriptors) - 1,
            "limits: the last descriptor is {}", fds.empty() ? -1 : fds.back());
    if (n == 0) first = fds.front();
    require(fds.front() == first, "limits: the lowest free descriptor was {} and is {}", first, fds.front());
    for (int open_fd : fds) close(open_fd);
  }
  return fmt::format("{} times at the limit", iterations);
}

// Queued while it was allowed, for this thread, which takes them at its end.
class QueuedSignals {
 public:
  QueuedSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGRTMIN + 7);
    require_zero(pthread_sigmask(SIG_BLOCK, &set_, nullptr), "pthread_sigmask");
    for (int i = 0; i < kSignals; ++i) {
      sigval value{};
      value.sival_int = i;
      require_zero(pthread_sigqueue(pthread_self(), SIGRTMIN + 7, value), "pthread_sigqueue");
    }
    require_call(timer_create(CLOCK_MONOTONIC, nullptr, &timer_) == 0, "timer_create");
  }
  // Of others of the user some may always be queued: at 0 none of ours can.
  void require_full() const {
    require(pthread_sigqueue(pthread_self(), SIGRTMIN + 7, sigval{}) == EAGAIN,
            "limits: a signal could be queued");
  }
  void take() {
    const timespec now{};
    siginfo_t info;
    for (int i = 0; i < kSignals; ++i) {
      require_call(sigtimedwait(&set_, &info, &now) == SIGRTMIN + 7, "sigtimedwait");
      require(info.si_code == SI_QUEUE && info.si_value.sival_int == i,
              "limits: signal {} has code {} and value {}", i, info.si_code, info.si_value.sival_int);
    }
    require(sigtimedwait(&set_, &info, &now) == -1 && errno == EAGAIN, "limits: there is one signal more");
    require_call(timer_delete(timer_) == 0, "timer_delete");
  }

 private:
  static constexpr int kSignals = 5;
  sigset_t set_;
  timer_t timer_;
};

std::string others(uint64_t iterations) {
  QueuedSignals queued;
  set_limit(RLIMIT_STACK, 256 << 10);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_MEMLOCK, 64 << 10);
  set_limit(RLIMIT_SIGPENDING, 0);
  set_limit(RLIMIT_MSGQUEUE, 4096);
  for (uint64_t n = 0; n < iterations; ++n) {
    require_limit(RLIMIT_STACK, 256 << 10);
    require_limit(RLIMIT_CORE, 0);
    require_limit(RLIMIT_MEMLOCK, 64 << 10);
    require_limit(RLIMIT_SIGPENDING, 0);
    queued.require_full();
    require_limit(RLIMIT_MSGQUEUE, 4096);
    std::thread([] {
      volatile std::byte stack[100'000];
      stack[99'999] = std::byte{1};
      require(stack[99'999] == std::byte{1}, "limits: the stack changed");
    }).join();
  }
  queued.take();
  return fmt::format("{} looks", iterations);
}

}  // namespace

int main(int argc, char** argv) {
  return run_victim({"limits",
                     "Lives close to its resource limits.",
                     {{"address", "little address space", 2'000, address_space},
                      {"nofile", "few descriptors", 20'000, descriptors},
                      {"others", "stack, core, locked memory, queued signals", 3'000, others}}},
                    argc, argv);
}
