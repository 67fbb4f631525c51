// The cost record of an image: its bytes are the library's, of the size that its version knew.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt ls`, `ckpt show`.
#pragma once

#include <cstring>
#include <optional>

#include "image/read/image_meta.h"

namespace ckpt::cli {

inline std::optional<CostRecord> cost_of(const ImageMeta& meta) {
  if (meta.cost.size() < sizeof(CostRecord)) return std::nullopt;
  CostRecord cost;
  std::memcpy(&cost, meta.cost.data(), sizeof(cost));
  return cost;
}

}  // namespace ckpt::cli
