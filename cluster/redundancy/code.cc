#include "cluster/redundancy/code.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ckpt::redundancy {

Result<std::unique_ptr<Code>> Code::make(const Scheme& scheme) {
  switch (scheme.kind) {
    case Kind::kMirror:
    case Kind::kParity:
      return make_parity(scheme);
    case Kind::kEvenOdd:
      return make_even_odd(scheme);
    case Kind::kReedSolomon:
      return make_reed_solomon(scheme);
  }
  return make_error(ExitCode::kInternal, 0, "no such redundancy");
}

Result<void> Code::recover(Blocks all, const std::vector<bool>& lost, size_t bytes) const {
  if (!can_recover(lost)) {
    return make_error(
        ExitCode::kImageDamaged, 0, "{} of {} blocks are lost: {} cannot compute them; it survives any {}",
        std::count(lost.begin(), lost.end(), true), lost.size(), scheme_name(scheme_), survives(scheme_));
  }
  recover_lost(all, lost, bytes);
  return {};
}

uint64_t checksum(std::span<const std::byte> block) { return XXH3_64bits(block.data(), block.size()); }

void xor_into(std::byte* to, const std::byte* from, size_t bytes) {
  size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    uint64_t a[4], b[4];
    std::memcpy(a, to + i, sizeof(a));
    std::memcpy(b, from + i, sizeof(b));
    for (int w = 0; w < 4; ++w) a[w] ^= b[w];
    std::memcpy(to + i, a, sizeof(a));
  }
  for (; i < bytes; ++i) to[i] ^= from[i];
}

}  // namespace ckpt::redundancy
