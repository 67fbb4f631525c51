// ptrace(2): which threads this one traces, how it let each go on, and which options it gave: the kernel does
// not say that to anybody. libc does the work.
#include <stdarg.h>

#include "base/checks/named_points.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/stop/tracing/tracee_table.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long ptrace(long request, long tid, long address, long data) {
  tracing::note_before(request, static_cast<int>(tid), static_cast<uint64_t>(data));
  const long r = sys::call(__NR_ptrace, request, tid, address, data);
  points::at("tracing.called");
  tracing::note_after(request, static_cast<int>(tid), static_cast<uint64_t>(data), !sys::failed(r));
  return r;
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(long, ptrace, int request, ...) {
  va_list list;
  va_start(list, request);
  const int tid = va_arg(list, int);
  void* const address = va_arg(list, void*);
  void* const data = va_arg(list, void*);
  va_end(list);
  tracing::note_before(request, tid, reinterpret_cast<uint64_t>(data));
  // -1 may be the word that was read: then it is no error, but all that such a request tells is whose it is.
  const long r =
      real_function(RealFunction::kPtrace).as<long(int, int, void*, void*)>()(request, tid, address, data);
  points::at("tracing.called");
  tracing::note_after(request, tid, reinterpret_cast<uint64_t>(data), r != -1);
  return r;
}
