#include "libckpt_rt/guard/calls.h"

#include <sys/socket.h>

#include "base/sys.h"
#include "libckpt_rt/guard/call_table.h"
#include "libckpt_rt/guard/outputs.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/guard/special_calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::guard {

Verdict each_output(long nr, const long* args, const Visitor& visitor) {
  Outputs out(visitor);
  const uint8_t at = nr >= 0 && nr < static_cast<long>(kMostNumbers) ? kIndex.at[nr] : kUnknown;
  if (at == kNothing) return writes_to_proc(nr, args) ? Verdict::kWait : Verdict::kPass;
  if (at == kUnknown) {
    const Verdict verdict = special_outputs(nr, args, out);
    return out.ok() ? verdict : Verdict::kWait;
  }
  // TCP_ZEROCOPY_RECEIVE names further memory; the length of SO_GET_FILTER is in instructions.
  if (nr == __NR_getsockopt) {
    const int level = static_cast<int>(args[1]), name = static_cast<int>(args[2]);
    if ((level == 6 && name == 35) || (level == SOL_SOCKET && name == SO_GET_FILTER)) return Verdict::kWait;
  }
  for (const Output& o : kCalls[at].out) out.take(o, args);
  return out.ok() ? Verdict::kPass : Verdict::kWait;
}

bool changes_mappings(long nr) {
  switch (nr) {
    case __NR_munmap:
    case __NR_mremap:
    case __NR_mmap:
    case __NR_madvise:
    case __NR_brk:
    case __NR_mprotect:
    case __NR_pkey_mprotect:
      return true;
    default:
      return false;
  }
}

bool mask_of_call(long nr, const long* args, uint64_t* mask) {
  uint64_t at = 0;
  switch (nr) {
    case __NR_rt_sigsuspend:
      at = static_cast<uint64_t>(args[0]);
      break;
    case __NR_ppoll:
      at = static_cast<uint64_t>(args[3]);
      break;
    case __NR_epoll_pwait:
    case __NR_epoll_pwait2:
      at = static_cast<uint64_t>(args[4]);
      break;
    case __NR_pselect6:
      if (args[5] == 0 || !copy_in(&at, static_cast<uint64_t>(args[5]), sizeof(at))) return false;
      break;
    default:
      return false;
  }
  return at != 0 && copy_in(mask, at, sizeof(*mask));
}

}  // namespace ckpt::guard
