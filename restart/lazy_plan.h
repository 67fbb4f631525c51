// Which memory the program gets only when it touches it (or when the loader comes to it), and which
// before it runs. docs/restart.md, "Lazy restart".
//
// Owner:     restart. Callers: ckpt-restart, before the new process exists: the loader and the new process
//            are its children and have the same plan.
// Never:     changes anything; reads more of the images than the lists of robust futexes.
#pragma once

#include <vector>

#include "writer/image_chain.h"

namespace ckpt {

// Part of an extent, inside one mapping.
struct LazyPiece {
  Addr address;
  uint64_t length;
  uint32_t image, extent;  // as in MemoryPiece
  uint64_t into;           // bytes into the extent's memory
};

struct LazyPlan {
  std::vector<bool> mappings;         // per mapping of the image: it is loaded lazily; empty: none is
  std::vector<LazyPiece> pieces;      // in address order
  std::vector<AddrRange> registered;  // what the userfaultfd watches: the pieces and small gaps between them
  std::vector<Addr> first;            // must be there before the program runs
  uint64_t bytes = 0;

  bool any() const { return !pieces.empty(); }
  bool lazy(size_t mapping) const { return mapping < mappings.size() && mappings[mapping]; }
};

// Of less than this, nothing is lazy by itself: it is loaded in the time that it takes to start.
inline constexpr uint64_t kLazyFrom = 64u << 20;  // bytes

LazyPlan make_lazy_plan(const ImageChain& image);

// The kernel and our rights allow it: userfaultfd for faults of the kernel too, with all events.
Result<void> probe_lazy();

// A userfaultfd of the calling process, non-blocking, with the events that lazy memory needs.
Result<int> open_lazy_userfaultfd();

}  // namespace ckpt
