// heap: the program break moves up and down under blocks that are checked. On its own, because
// moving the break is safe only while no other thread allocates.
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "tests/programs/victim.h"

namespace {

using namespace victim;

struct Block {
  unsigned char* bytes;
  size_t size;
  unsigned char tag;
};

void check(const Block& block) {
  for (size_t i = 0; i < block.size; ++i) {
    require(block.bytes[i] == block.tag, "heap: byte {} of {} is {}, not {}", i, block.size, block.bytes[i],
            block.tag);
  }
}

// malloc() below its mmap threshold extends the break; malloc_trim() gives back what is free on top.
std::string trimmed(uint64_t iterations) {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
  Random random(500);
  std::deque<Block> live;
  uint64_t freed = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    size_t size = 1 + random.below(60'000);
    auto* bytes = static_cast<unsigned char*>(std::malloc(size));
    require(bytes != nullptr, "heap: no memory");
    Block block{bytes, size, static_cast<unsigned char>(n)};
    std::memset(bytes, block.tag, size);
    live.push_back(block);
    while (live.size() > 40 + n % 80) {
      bool newest = random.below(2) == 0;
      Block gone = newest ? live.back() : live.front();
      newest ? live.pop_back() : live.pop_front();
      check(gone);
      std::free(gone.bytes);
      ++freed;
    }
    if (n % 64 == 0) malloc_trim(0);
  }
  for (const Block& block : live) {
    check(block);
    std::free(block.bytes);
    ++freed;
  }
  return fmt::format("{} blocks", freed);
}

std::string moved(uint64_t iterations) {
  constexpr size_t kStep = 40'000;
  for (uint64_t n = 0; n < iterations; ++n) {
    void* bottom = sbrk(kStep);
    require_call(bottom != reinterpret_cast<void*>(-1), "sbrk");
    auto* bytes = static_cast<unsigned char*>(bottom);
    for (size_t i = 0; i < kStep; i += 512) {
      require(n == 0 || i < kPage || bytes[i] == 0, "heap: new memory at the break holds {}", bytes[i]);
      bytes[i] = static_cast<unsigned char>(n);
    }
    for (size_t i = 0; i < kStep; i += 512) {
      require(bytes[i] == static_cast<unsigned char>(n), "heap: memory at the break changed");
    }
    std::memset(bytes, 0, kPage);  // the page that stays when the break goes back
    require_call(sbrk(-static_cast<intptr_t>(kStep)) != reinterpret_cast<void*>(-1), "sbrk");
  }
  return fmt::format("the break moved {} times", 2 * iterations);
}

}  // namespace

int main(int argc, char** argv) {
  return run_victim({"heap",
                     "Moves the program break.",
                     {{"heap", "malloc_trim, then brk up and down", 40'000,
                       [](uint64_t n) { return trimmed(n) + ", " + moved(n); }}}},
                    argc, argv);
}
