// Memory of ours that a checkpoint leaves to the next one, with the pages that it has touched. To map it,
// have the kernel clear it and unmap it again is a quarter of what a small increment takes.
//
// Owner:     a Watch: without increments nothing is left between checkpoints.
// Callers:   the agent.
// Bound:     kMostTouched bytes of each block keep their pages. All blocks are unmapped when no checkpoint
//            has come for a second (agent.cc), and before the program goes back in place.
// Never:     in an image (Watch::own_ranges), nor in a child of the program (MADV_DONTFORK).
#pragma once

#include <cstdint>

#include "base/units.h"

namespace ckpt {

class SpareMemory {
 public:
  enum class Use { kLists, kBuffers, kEagerCopies };
  static constexpr uint64_t kUses = 3;
  static constexpr uint64_t kMostTouched = 4 << 20;

  // touched: the only part of it whose pages may be there. An empty block: there is none. A block of lists is
  // all zeros when it is taken.
  struct Block {
    AddrRange range{}, touched{};
  };

  SpareMemory() = default;
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;
  ~SpareMemory() { release(); }

  // A block of `least` to `most` bytes becomes the caller's; one of another size is unmapped.
  Block take(Use use, uint64_t least, uint64_t most);
  // The contents of the block stay, but for pages behind the first kMostTouched bytes of `touched`, which
  // read as zeros again. A block that the kernel does not take them from is unmapped.
  void give(Use use, Block block);
  // Zeros in what the lists have left: best when the checkpoint has been answered. take() sees to it else.
  void clean();
  void release();
  AddrRange range(Use use) const { return blocks_[static_cast<uint64_t>(use)].range; }

 private:
  Block blocks_[kUses];
  AddrRange to_clean_{};  // of the lists' block
};

}  // namespace ckpt
