// Which memory the program gets only when it touches it (or when the loader comes to it), and which
// before it runs. docs/restart.md, "Lazy restart".
//
// Owner:     restart. Callers: ckpt-restart, before the new process exists: the loader and the new process
//            are its children and have the same plan. open_lazy_userfaultfd(): the new process too.
// Never:     changes anything; reads more of the images than the lists of robust futexes.
#pragma once

#include <vector>

#include "image/read/image_chain.h"

namespace ckpt {

struct LazyPlan {
  std::vector<bool> mappings;         // per mapping of the image: it is loaded lazily; empty: none is
  std::vector<AddrRange> registered;  // what the userfaultfd watches: whole mappings
  std::vector<Addr> first;            // must be there before the program runs
  uint64_t bytes = 0;

  bool any() const { return bytes != 0; }
  bool lazy(size_t mapping) const { return mapping < mappings.size() && mappings[mapping]; }
};

// Of less than this, nothing is lazy by itself: it is loaded in the time that it takes to start.
inline constexpr uint64_t kLazyFrom = 64u << 20;  // bytes

LazyPlan make_lazy_plan(const ImageChain& image);

// What is loaded lazily, in address order, each piece inside one mapping. Of gigabytes the list is long: only
// the loader makes it, while the new process is being made.
std::vector<MemoryPiece> lazy_pieces(const ImageChain& image, const LazyPlan& plan);

// The kernel and our rights allow it: userfaultfd for faults of the kernel too, with all events.
Result<void> probe_lazy();

// A userfaultfd of the calling process, non-blocking, with the events that lazy memory needs.
Result<int> open_lazy_userfaultfd();

}  // namespace ckpt
