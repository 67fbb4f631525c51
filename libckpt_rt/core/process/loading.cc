#include "libckpt_rt/core/process/loading.h"

#include <atomic>

#include "base/sys.h"
#include "base/units.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::loading {

namespace {
// In a forked child too: its memory has a loader and a gate of its own, at the same address.
// seq_cst, both: a thread says that it reads the page, and looks where it is; the agent says that it is
// nowhere, and looks who reads. So no page goes that is read.
constinit std::atomic<uint64_t> gate{0};
constinit std::atomic<bool> is_read{false};

// The loader fills this page last: reading it waits until all memory is there.
void touch(uint64_t page) { (void)*reinterpret_cast<const volatile char*>(page); }
}  // namespace

void begin(uint64_t address) {
  gate.store(address, std::memory_order_relaxed);
  is_read.store(false, std::memory_order_relaxed);
}

void await_all() {
  is_read.store(true);
  if (const uint64_t page = gate.load(); page != 0) touch(page);
}

void await_end() {
  const uint64_t page = gate.load(std::memory_order_relaxed);
  if (page == 0) return;
  touch(page);
  gate.store(0);
  if (!is_read.load()) sys::call(__NR_munmap, page, kPageSize);
}

}  // namespace ckpt::loading
