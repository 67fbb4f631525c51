// Blocks of memory that an exchange receives, computes and keeps, and those that are free again: what was
// used once costs no page faults any more.
//
// Owner: cluster/keeper. Any thread. A block comes back to its pool by itself; the pool outlives its blocks.
// Callers: the mesh and the exchange.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cluster/keeper/striping.h"
#include "cluster/redundancy/code.h"

namespace ckpt::keeper {

// What a message between exchanges begins with. A block's bytes may follow.
struct MessageHead {
  uint32_t kind;
  uint32_t role;      // a hello, a beginning, the end of a batch: the sender
  uint64_t stripe;    // the end of a batch: its number
  uint64_t exchange;  // whose message it is (ExchangePlan::number); a hello is of none
};

class BlockPool {
 public:
  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool() {
    for (std::byte* memory : free_) std::free(memory);
  }

  struct Return {
    Return() : pool(nullptr) {}
    explicit Return(BlockPool* to) : pool(to) {}
    BlockPool* pool;
    void operator()(std::byte* memory) const { pool->give(memory); }
  };

  // kStripeBlock bytes, with room for a message's head before them: a message is decrypted where its block is
  // used.
  class Block {
   public:
    Block() = default;
    explicit operator bool() const { return memory_ != nullptr; }
    std::byte* bytes() const { return memory_.get() + kBefore; }
    std::span<std::byte> span() const { return {bytes(), kStripeBlock}; }
    std::span<std::byte> message() const {
      return {bytes() - sizeof(MessageHead), sizeof(MessageHead) + kStripeBlock};
    }

   private:
    friend class BlockPool;
    explicit Block(std::byte* memory, BlockPool* pool) : memory_(memory, Return{pool}) {}
    std::unique_ptr<std::byte, Return> memory_;
  };

  // Its bytes are any. Empty: there is no memory.
  Block take() {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      if (!free_.empty()) {
        std::byte* memory = free_.back();
        free_.pop_back();
        return Block(memory, this);
      }
    }
    return Block(
        static_cast<std::byte*>(std::aligned_alloc(redundancy::Code::kAlignment, kBefore + kStripeBlock)),
        this);
  }

 private:
  static constexpr size_t kBefore = redundancy::Code::kAlignment;
  static_assert(sizeof(MessageHead) <= kBefore);

  static constexpr size_t kMostFree = 64;  // 16 MiB, from one exchange to the next

  void give(std::byte* memory) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (free_.size() < kMostFree)
      free_.push_back(memory);
    else
      std::free(memory);
  }

  std::mutex lock_;
  std::vector<std::byte*> free_;
};

using Block = BlockPool::Block;

}  // namespace ckpt::keeper
