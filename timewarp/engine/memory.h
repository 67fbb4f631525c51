// Memory of the engines: blocks of one size, from large regions, reused last in first out.
//
// Owner:     a thread of the engine; one Pool for each size and each pair of threads.
// Callers:   that thread only.
// Never:     gives a region back before the end of the run. Throws std::bad_alloc when the kernel refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ckpt::timewarp {

// Regions from the kernel, in pages of a chosen size.
class Regions {
 public:
  Regions() = default;
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;
  ~Regions();

  // page_kib: 4, 2048 (transparent) or 1048576 (hugetlbfs; smaller ones where the kernel has none).
  void set_page(uint32_t page_kib) { page_kib_ = page_kib; }
  // Zeroed, aligned to a cache line.
  std::byte* take(size_t bytes);
  size_t taken() const { return taken_; }
  // A block of its own, for what is large.
  std::byte* map(size_t bytes);

 private:
  struct Mapping {
    std::byte* at;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  size_t taken_ = 0;
  uint32_t page_kib_ = 2048;
};

// Free blocks of one size, whole cache lines.
class Pool {
 public:
  void open(Regions& regions, size_t bytes) {
    constexpr size_t kLine = 64;
    regions_ = &regions;
    bytes_ = (bytes + kLine - 1) / kLine * kLine;
  }
  void* take() {
    if (free_.empty()) return fresh();
    void* block = free_.back();
    free_.pop_back();
    return block;
  }
  void give(void* block) { free_.push_back(block); }
  size_t free_blocks() const { return free_.size(); }
  size_t block_bytes() const { return bytes_; }
  // Moves `n` free blocks, the ones longest unused, to `to`.
  void hand_over(size_t n, std::vector<void*>& to);
  void accept(const std::vector<void*>& blocks) { free_.insert(free_.end(), blocks.begin(), blocks.end()); }

 private:
  void* fresh();

  Regions* regions_ = nullptr;
  size_t bytes_ = 0;
  std::vector<void*> free_;
};

}  // namespace ckpt::timewarp
