#include "libckpt_rt/guard/guarded_memory.h"

#include <errno.h>
#include <sys/mman.h>

#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> GuardedMemory::open_stopped(bool, ThreadSlot*, Arena& arena) {
  open_pages_ = ArenaVector<Addr>(arena);
  open_ = true;
  return {};
}

bool GuardedMemory::is_agent() {
  return own_threads.agent.block().contains(Addr::of(__builtin_frame_address(0)));
}

void GuardedMemory::leave_out(std::span<Mapping> map) {
  for (Mapping& m : map) {
    if (m.handling == Handling::kTracked && (m.shared || (m.prot & PROT_READ) == 0))
      m.handling = Handling::kEager;
  }
}

Result<void> GuardedMemory::add_stopped(std::span<Mapping> map) {
  leave_out(map);
  for (Mapping& m : map) {
    if (m.handling != Handling::kTracked) continue;
    auto taken = take(m);
    if (!taken.ok()) return taken.error();
    if (!*taken) m.handling = Handling::kEager;
  }
  return {};
}

void GuardedMemory::each_busy(void (*visit)(void*, AddrRange), void* context) {
  for (Addr page : open_pages_) visit(context, {page, page + kPageSize});
  const uint32_t count = guard::window.next_record.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    const auto& record =
        *reinterpret_cast<const guard::GuardRecord*>(guard::window.blocks + i * guard::kBlockBytes);
    const uint32_t n = record.busy_count.load(std::memory_order_relaxed);
    for (uint32_t j = 0; j < n; ++j) visit(context, record.busy[j]);
  }
}

long GuardedMemory::protect(AddrRange range) {
  protections_.fetch_add(1, std::memory_order_relaxed);
  const long r = change(range, false);
  if (r != 0) unprotect(range);
  return r;
}

long GuardedMemory::unprotect_many(AddrRange range) {
  const long r = unprotect(range);
  return r == 0 && !is_mapped(range) ? -ENOENT : r;
}

long GuardedMemory::read(std::byte* to, Addr from, size_t bytes, bool) {
  return (is_agent() ? copy_.copy(to, from, bytes) : KernelCopy::read(to, from, bytes)) ? 0 : -EFAULT;
}

// Only the agent reads several pieces at once, for it copies in order.
long GuardedMemory::read_pieces(std::span<const CopyPiece> pieces, bool readable) {
  return copy_.copy(pieces) ? 0 : ProgramMemory::read_pieces(pieces, readable);
}

}  // namespace ckpt
