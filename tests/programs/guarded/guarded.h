// What the exercises of the victim "guarded" share: memory of which nobody has written for a while, so that
// in a checkpoint the kernel is the first to write to it.
//
// Owner: tests/programs. Callers: the exercises of guarded/.
#pragma once

#include <cstring>

#include "tests/programs/victim.h"

namespace guarded {

// Many pages, handed out one place after another: a place comes again only after all others.
class Field {
 public:
  explicit Field(uint64_t pages, uint64_t seed)
      : bytes_(pages * victim::kPage), memory_(victim::map_pages(pages)), random_(seed) {
    std::memset(memory_, 0x5a, bytes_);
  }
  // Not aligned; `size` bytes.
  std::byte* place(uint64_t size) {
    at_ += 37 * victim::kPage + random_.below(64) * 8;
    if (at_ + size + 16 > bytes_) at_ = random_.below(64) * 8;
    return memory_ + at_;
  }
  template <typename T>
  T* place_for(uint64_t count = 1) {
    return reinterpret_cast<T*>(place(sizeof(T) * count));
  }
  victim::Random& random() { return random_; }

 private:
  uint64_t bytes_, at_ = 0;
  std::byte* memory_;
  victim::Random random_;
};

std::string reads(uint64_t iterations);
std::string facts(uint64_t iterations);
std::string messages(uint64_t iterations);
std::string waits(uint64_t iterations);
std::string library(uint64_t iterations);
std::string children(uint64_t iterations);
std::string heap_stacks(uint64_t iterations);
std::string coroutines(uint64_t iterations);
std::string repairs(uint64_t iterations);
std::string masks(uint64_t iterations);
std::string thread_ends(uint64_t iterations);
std::string grows(uint64_t iterations);

}  // namespace guarded
