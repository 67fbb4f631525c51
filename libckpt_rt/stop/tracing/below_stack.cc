#include "libckpt_rt/stop/tracing/below_stack.h"

#include <errno.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>

#include "base/memory/large_table.h"
#include "base/units.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/stop/tracing/tracee_calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::tracing {

namespace {

constexpr uint64_t kRedZone = 128;  // which no frame touches
constexpr size_t kBelowBytes = kHandlerStackBytes, kPieces = kBelowBytes / kPageSize + 1;
CKPT_LARGE_TABLE constinit std::byte below[kMostTracees][kBelowBytes]{};

uint64_t top_of(const Tracee& t) { return t.registers.rsp - kRedZone; }

// Page by page from the top down, as far as it can be done. Bytes; or the error of the first piece.
long transfer(int call, const Tracee& t, size_t bytes) {
  std::byte* const end = below[&t - tracees().data()] + kBelowBytes;
  iovec here[kPieces], there[kPieces];
  size_t count = 0, done = 0;
  for (uint64_t at = top_of(t); done < bytes && count < kPieces; ++count) {
    const size_t piece = std::min<size_t>(bytes - done, (at - 1) % kPageSize + 1);
    at -= piece, done += piece;
    here[count] = {end - done, piece};
    there[count] = {reinterpret_cast<void*>(at), piece};
  }
  return sys::call(call, tid_of(t), here, count, there, count, 0L);
}

}  // namespace

bool save_below(Tracee& t) {
  t.below = 0;
  // A stack that grows by itself: for this call, as for the program, the kernel makes it larger.
  for (uint64_t at = top_of(t) - 1; at > top_of(t) - kBelowBytes - kPageSize; at -= kPageSize) {
    uint64_t word = 0;
    trace::call(PTRACE_PEEKDATA, tid_of(t), at & ~uint64_t{7}, reinterpret_cast<uint64_t>(&word));
  }
  const long r = transfer(__NR_process_vm_readv, t, kBelowBytes);
  if (sys::failed(r)) return r != -EFAULT;  // a filter may forbid the call
  t.below = static_cast<uint32_t>(r);
  return t.below >= kBelowBytes;
}

void look_at_handler_stack(Tracee& t) {
  user_regs_struct now{};
  read_registers(tid_of(t), now);
  const uint64_t ours = top_of(t) - now.rsp;  // on another stack: beyond all measure, or less than nothing
  if (ours > 2 * kBelowBytes) t.below = 0;
}

void give_back_below(Tracee& t) {
  const long r = t.below == 0 ? 0 : transfer(__NR_process_vm_writev, t, t.below);
  if (r != t.below)
    statistics::set_last_error(make_error(ExitCode::kUnavailable, sys::failed(r) ? static_cast<int>(r) : 0,
                                          "what thread {} of process {}, which this one traces (ptrace), "
                                          "had below its stack pointer cannot be given back",
                                          tid_of(t), t.process));
  t.below = 0;
}

}  // namespace ckpt::tracing
