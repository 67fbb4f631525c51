// Compiled for processors with AVX2; called where there is one (checksum.h). This file must include nothing
// whose functions others could get from here.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

#include "base/preload_rules.h"

namespace ckpt {

uint64_t checksum_by_avx2(const void* data, size_t bytes);
uint64_t checksum_by_avx2(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace ckpt
