#include <sys/mman.h>
#include <unistd.h>

#include "tests/programs/hunters/hunters.h"

namespace hunters {

using namespace victim;

namespace {

constexpr uint64_t kPages = 401;
constexpr unsigned kThreads = 2;

std::byte* map_shared(uint64_t pages, int fd) {
  int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* p = mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, flags, fd, 0);
  require_call(p != MAP_FAILED, "mmap of shared memory");
  return static_cast<std::byte*>(p);
}

}  // namespace

// Each thread counts up, in this order, a word in private memory, in shared anonymous memory and in a
// memfd; the memfd is read back through a second mapping of it. All threads add to common totals.
std::string shared(uint64_t iterations) {
  int fd = memfd_create("counters", MFD_CLOEXEC);
  require_call(fd >= 0, "memfd_create");
  require_call(ftruncate(fd, static_cast<off_t>((kThreads * kPages + 1) * kPage)) == 0, "ftruncate");
  std::byte* memfd = map_shared(kThreads * kPages + 1, fd);
  std::byte* alias = map_shared(kThreads * kPages + 1, fd);
  std::byte* anonymous = map_shared(kThreads * kPages + 1, -1);
  std::byte* own = map_pages(kThreads * kPages + 1);
  const uint64_t totals = kThreads * kPages * kPage;
  run_threads(kThreads, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      uint64_t at = (t * kPages + n * 97 % kPages) * kPage;
      uint64_t expected = n / kPages;
      uint64_t a = word_at(own + at).load(std::memory_order_relaxed);
      uint64_t b = word_at(anonymous + at).load(std::memory_order_relaxed);
      uint64_t c = word_at(alias + at).load(std::memory_order_relaxed);
      require(a == expected && b == expected && c == expected,
              "shared: thread {} step {}: private {}, shared {}, memfd {}, not {}", t, n, a, b, c, expected);
      word_at(own + at).store(expected + 1, std::memory_order_relaxed);
      word_at(anonymous + at).store(expected + 1, std::memory_order_relaxed);
      word_at(memfd + at).store(expected + 1, std::memory_order_relaxed);
      word_at(own + totals).fetch_add(1, std::memory_order_relaxed);
      word_at(anonymous + totals).fetch_add(1, std::memory_order_relaxed);
      word_at(memfd + totals).fetch_add(1, std::memory_order_relaxed);
    }
  });
  for (std::byte* where : {own, anonymous, memfd, alias}) {
    uint64_t total = word_at(where + totals).load();
    require(total == kThreads * iterations, "shared: a total is {}, not {}", total, kThreads * iterations);
  }
  uint64_t through_fd = 0;
  require_call(pread(fd, &through_fd, sizeof(through_fd), static_cast<off_t>(totals)) == sizeof(through_fd),
               "pread of the memfd");
  require(through_fd == kThreads * iterations, "shared: the memfd's descriptor reads {}", through_fd);
  close(fd);
  return fmt::format("{} steps in private, shared and memfd memory", kThreads * iterations);
}

}  // namespace hunters
