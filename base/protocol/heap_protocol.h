// What libckpt_heap.so and libckpt_rt.so have in common: where the program's heap lies, and which of its
// pages are free. The heap exports one symbol, ckpt_heap_v1; libckpt_rt refers to it weakly, so that each
// works without the other and in either order in LD_PRELOAD.
//
// Owner:     libckpt_heap. Callers: threads of the program inside malloc write it; the agent reads it, in the
//            stop.
// Never:     moves: a restarted process goes on with what is in its memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt {

// Lies at the beginning of its region, which is one reservation of address space: this, the bits, then pages.
struct HeapRegion {
  uint64_t pages_start = 0;           // address of the first page that malloc may use
  uint64_t pages_end = 0;             // end of the reservation
  std::atomic<uint64_t> used_end{0};  // pages from here on have never been used, and cannot be read
  // Bit i: page i is free and its content is worth nothing. The heap clears the bit before it uses such a
  // page, and fills the page with zeros after that. So a page whose bit is set in a stop may come back with
  // any content: in the image it is a hole. (A page whose bit is not set, used or not, has to be saved as it
  // is.)
  std::atomic<uint64_t>* stale = nullptr;
};

struct HeapInterface {
  static constexpr uint32_t kMostRegions = 64;
  // In the order in which they were made; nullptr from the first that was not.
  std::atomic<HeapRegion*> regions[kMostRegions]{};
  // Memory outside of all regions: blocks larger than one, or no address space could be reserved (ulimit -v).
  std::atomic<uint64_t> bytes_outside{0};
};

}  // namespace ckpt

extern "C" __attribute__((visibility("default"))) ckpt::HeapInterface ckpt_heap_v1;
