// What libFuzzer's mutators of all targets have in common: changes as of the mutation test, and now and then
// as of libFuzzer itself. Then the checksums are made right, so that the checks behind them are reached.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "tests/image/mutate.h"
#include "tests/image/reseal.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace ckpt {

// adjust(bytes, random): a last change before the checksums.
template <typename Adjust>
size_t mutate_image(uint8_t* data, size_t size, size_t max_size, unsigned seed, Adjust adjust) {
  std::mt19937 random(seed);
  if (random() % 3 == 0) {
    size = LLVMFuzzerMutate(data, size, max_size);
    if (random() % 4 == 0) return size;  // as it is, wrong checksums too
  }
  std::string bytes(reinterpret_cast<const char*>(data), size);
  mutate(bytes, random);
  adjust(bytes, random);
  reseal(bytes);
  size = std::min(bytes.size(), max_size);
  std::memcpy(data, bytes.data(), size);
  return size;
}

inline size_t mutate_image(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_image(data, size, max_size, seed, [](std::string&, std::mt19937&) {});
}

}  // namespace ckpt
