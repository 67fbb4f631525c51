// What keeps children of this process away while a ring is mapped that they must not have.
//
// Owner:     image/write. A value of two functions. Callers: the thread that opens an image.
#pragma once

namespace ckpt {

struct RingGuard {
  bool (*hold)();  // false: not to be had now, and no ring is made
  void (*release)();
};

}  // namespace ckpt
