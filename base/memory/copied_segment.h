// A segment of memory on its way from the copier to the image.
//
// Owner:     base, between copier and image. Header only. Callers: copying threads make it, the writer thread
//            takes it.
#pragma once

#include "base/units.h"

namespace ckpt {

// One segment, copied: `data` holds segment-size bytes from `base`; page i is part of the image iff
// bit i of page_mask is set. Pages that are all zero have been taken out of the mask already.
struct CopiedSegment {
  Addr base;
  uint64_t page_mask;
  std::byte* data;  // page-aligned, stays valid until released
  uint32_t buffer;  // the pool's number for it, given back through the release function
};

}  // namespace ckpt
