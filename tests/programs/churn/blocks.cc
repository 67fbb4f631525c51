#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/programs/churn/churn.h"

namespace churn {

using namespace victim;

namespace {

constexpr unsigned kThreads = 3;
constexpr unsigned kPlaces = 256;

// What stands at the beginning of every block; the rest of it is filled with `tag`.
struct Block {
  uint64_t size;
  uint64_t tag;
};

size_t random_size(Random& random) {
  switch (random.below(64)) {
    case 0:
      return 1'000'000 + random.below(2'000'000);  // its own mapping
    case 1:
      return 150'000 + random.below(100'000);
    case 2:
    case 3:
      return 20'000 + random.below(40'000);
    default:
      return sizeof(Block) + random.below(1'500);
  }
}

void fill(Block* block, size_t size, uint64_t tag) {
  block->size = size;
  block->tag = tag;
  std::memset(block + 1, static_cast<int>(tag & 0xff), size - sizeof(Block));
}

// Everything in small blocks; a sample of large ones.
void check(const Block* block) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(block + 1);
  size_t n = block->size - sizeof(Block);
  require(block->size >= sizeof(Block) && block->size < 4'000'000 && block->tag == mix(block->size),
          "blocks: a block says size {} tag {:x}", block->size, block->tag);
  size_t step = n < 4096 ? 1 : 509;
  for (size_t i = 0; i < n; i += step) {
    require(bytes[i] == (block->tag & 0xff), "blocks: byte {} of {} is {:x}", i, n, bytes[i]);
  }
}

}  // namespace

// Threads put new blocks into common places and free what they find there.
std::string blocks(uint64_t iterations) {
  std::atomic<Block*> places[kPlaces] = {};
  std::atomic<uint64_t> allocated{0}, freed{0};
  run_threads(kThreads, [&](unsigned t) {
    Random random(t + 400);
    uint64_t made = 0, gone = 0;
    for (uint64_t n = 0; n < iterations; ++n) {
      size_t size = random_size(random);
      auto* block = static_cast<Block*>(random.below(4) == 0 ? std::calloc(1, size) : std::malloc(size));
      require(block != nullptr, "blocks: no memory for {} bytes", size);
      fill(block, size, mix(size));
      ++made;
      // acq_rel: the block's contents change hands with its address.
      block = places[random.below(kPlaces)].exchange(block, std::memory_order_acq_rel);
      if (block == nullptr) continue;
      check(block);
      if (random.below(8) == 0) {
        size_t grown = block->size + random.below(5000);
        block = static_cast<Block*>(std::realloc(block, grown));
        require(block != nullptr, "blocks: no memory to grow to {} bytes", grown);
        check(block);
      }
      std::free(block);
      ++gone;
    }
    allocated += made;
    freed += gone;
  });
  for (auto& place : places) {
    if (Block* block = place.load()) {
      check(block);
      std::free(block);
      ++freed;
    }
  }
  require(allocated == freed, "blocks: {} allocated, {} freed", allocated.load(), freed.load());
  return fmt::format("{} blocks allocated and freed", allocated.load());
}

}  // namespace churn
