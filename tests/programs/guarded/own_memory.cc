// own_memory: writes to its memory through /proc/self/mem, which no protection of a page holds up.
#include <fcntl.h>
#include <unistd.h>

#include "tests/programs/victim.h"

namespace {

using namespace victim;

// A page that the kernel has written to before it was copied holds more than this loop knows of after a
// restart.
std::string own_memory(uint64_t iterations) {
  constexpr uint64_t kPages = 2048;
  std::byte* const memory = map_pages(kPages);
  for (uint64_t n = 0; n < iterations; ++n) {
    std::byte* const page = memory + n % kPages * kPage;
    const uint64_t before = n < kPages ? 0 : mix(n - kPages), after = mix(n);
    const uint64_t found = word_at(page).load(std::memory_order_relaxed);
    require(found == before, "own_memory: page {} holds {:x}, not {:x}", n % kPages, found, before);
    const int file = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    require_call(file >= 0, "open /proc/self/mem");
    require_call(pwrite(file, &after, sizeof(after), reinterpret_cast<off_t>(page)) == sizeof(after),
                 "pwrite to /proc/self/mem");
    require_call(close(file) == 0, "close");
  }
  return fmt::format("{} words written", iterations);
}

}  // namespace

int main(int argc, char** argv) {
  return victim::run_victim(
      {"own_memory",
       "Writes to its memory by /proc/self/mem: one that fails, or a page that holds what "
       "was not written yet, ends it.",
       {{"own_memory", "a word of one page after the other", 400'000, own_memory}}},
      argc, argv);
}
