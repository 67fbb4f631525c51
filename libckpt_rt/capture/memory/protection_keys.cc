#include "libckpt_rt/capture/memory/protection_keys.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/machine/cpu_features.h"
#include "base/sys.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::protection_keys {

namespace {

constexpr int kKeys = 16;                        // of x86; 0 is everybody's
constexpr uint64_t kProtectionKeys = 1ull << 9;  // in XCR0, where the kernel has them in use

}  // namespace

bool any_taken(std::span<const Mapping> mappings) {
  long taken[kKeys];
  int free_keys = 0;
  while (free_keys < kKeys && (taken[free_keys] = sys::call(__NR_pkey_alloc, 0L, 0L)) > 0) ++free_keys;
  for (int i = 0; i < free_keys; ++i) sys::call(__NR_pkey_free, taken[i]);
  if (free_keys == kKeys - 1) return false;
  if (free_keys == 0 && (read_xfeatures() & kProtectionKeys) == 0) return false;  // this machine has none
  // The kernel takes one by itself for memory that may be run and not read, and does so again at a restart.
  const bool of_kernel =
      std::any_of(mappings.begin(), mappings.end(), [](const Mapping& m) { return m.prot == PROT_EXEC; });
  return free_keys < kKeys - 1 - (of_kernel ? 1 : 0);
}

}  // namespace ckpt::protection_keys
