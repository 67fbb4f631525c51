#include "libckpt_rt/core/process/loading.h"

#include "base/sys.h"
#include "base/units.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::loading {

namespace {
// In a forked child too: its memory has a loader and a gate of its own, at the same address.
constinit uint64_t gate = 0;
}  // namespace

void begin(uint64_t address) { gate = address; }

void await_end() {
  if (gate == 0) return;
  // The loader fills this page last: reading it waits until all memory is there.
  (void)*reinterpret_cast<const volatile char*>(gate);
  sys::call(__NR_munmap, gate, kPageSize);
  gate = 0;
}

}  // namespace ckpt::loading
