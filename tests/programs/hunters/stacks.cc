#include "tests/programs/hunters/hunters.h"

namespace hunters {

using namespace victim;

namespace {

constexpr uint32_t kNodes = 1024;
constexpr unsigned kStacks = 8;
constexpr unsigned kThreads = 3;

struct Node {
  std::atomic<uint32_t> next;   // index + 1, 0 at the end
  std::atomic<uint32_t> owner;  // thread + 1 that holds it, 0 while it is in a stack
  std::atomic<uint64_t> moves;
};

// Treiber stacks. A head is a tag and the index + 1 of the first node. Every change counts the tag up, so
// that a head that was popped and pushed again does not look unchanged.
class Stacks {
 public:
  Stacks() : nodes_(map_pages(kNodes)), heads_(map_pages(kStacks)) {}

  Node& node(uint32_t i) { return *reinterpret_cast<Node*>(nodes_ + i * kPage); }
  std::atomic<uint64_t>& head(unsigned s) { return word_at(heads_ + s * kPage); }

  void push(unsigned s, uint32_t i) {
    uint64_t old = head(s).load(std::memory_order_relaxed);
    do {
      node(i).next.store(static_cast<uint32_t>(old), std::memory_order_relaxed);
      // release: whoever pops the node sees what we wrote into it.
    } while (!head(s).compare_exchange_weak(old, tagged(old, i + 1), std::memory_order_release,
                                            std::memory_order_relaxed));
  }
  // False when the stack is empty.
  bool pop(unsigned s, uint32_t* i) {
    uint64_t old = head(s).load(std::memory_order_acquire);
    for (;;) {
      uint32_t first = static_cast<uint32_t>(old);
      if (first == 0) return false;
      require(first <= kNodes, "stacks: stack {} begins with node {}", s, first);
      uint32_t next = node(first - 1).next.load(std::memory_order_relaxed);
      if (head(s).compare_exchange_weak(old, tagged(old, next), std::memory_order_acquire)) {
        *i = first - 1;
        return true;
      }
    }
  }

 private:
  static uint64_t tagged(uint64_t old, uint32_t first) { return ((old >> 32) + 1) << 32 | first; }

  std::byte* nodes_;
  std::byte* heads_;
};

}  // namespace

std::string stacks(uint64_t iterations) {
  Stacks all;
  for (uint32_t i = 0; i < kNodes; ++i) all.push(i % kStacks, i);
  run_threads(kThreads, [&](unsigned t) {
    Random random(t);
    for (uint64_t n = 0; n < iterations; ++n) {
      uint32_t i;
      while (!all.pop(static_cast<unsigned>(random.below(kStacks)), &i)) {
      }
      Node& node = all.node(i);
      uint32_t owner = node.owner.exchange(t + 1, std::memory_order_relaxed);
      require(owner == 0, "stacks: node {} popped by thread {} belongs to thread {}", i, t, owner - 1);
      node.moves.store(node.moves.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      owner = node.owner.exchange(0, std::memory_order_relaxed);
      require(owner == t + 1, "stacks: node {} of thread {} went to thread {}", i, t, owner - 1);
      all.push(static_cast<unsigned>(random.below(kStacks)), i);
    }
  });
  std::vector<bool> seen(kNodes);
  uint64_t moves = 0, found = 0;
  for (unsigned s = 0; s < kStacks; ++s) {
    for (uint32_t i; all.pop(s, &i);) {
      require(!seen[i], "stacks: node {} is in two places", i);
      seen[i] = true;
      moves += all.node(i).moves.load();
      ++found;
    }
  }
  require(found == kNodes, "stacks: {} of {} nodes are left", found, kNodes);
  require(moves == kThreads * iterations, "stacks: {} moves counted, {} made", moves, kThreads * iterations);
  return fmt::format("{} nodes moved {} times", found, moves);
}

}  // namespace hunters
