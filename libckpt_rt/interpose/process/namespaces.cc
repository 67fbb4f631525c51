// unshare(2) and setns(2): the kernel allows some of them, as entering a user namespace, only to a process of
// one thread. So our threads end before these calls. seccomp(2): see prctl.cc. (libc has no seccomp().)
#include <linux/seccomp.h>

#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/seccomp/own_filters.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long unshare(int flags) {
  hooks::begin_alone();
  const long r = sys::call(__NR_unshare, long{flags});
  hooks::end_alone();
  if (r == 0) hooks::note_namespaces(flags);
  return r;
}

long setns(int fd, int kind) {
  hooks::begin_alone();
  const long r = sys::call(__NR_setns, long{fd}, long{kind});
  hooks::end_alone();
  if (r == 0) hooks::note_namespaces(kind);
  return r;
}

long seccomp(unsigned operation, unsigned flags, void* argument) {
  if (operation == SECCOMP_SET_MODE_STRICT)
    return become_strict(__NR_seccomp, operation, flags, reinterpret_cast<long>(argument), 0, 0);
  if (operation == SECCOMP_SET_MODE_FILTER) return set_filter(own_filters::By::kSeccomp, flags, argument);
  return sys::call(__NR_seccomp, long{operation}, long{flags}, argument);
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(int, unshare, int flags) { return to_errno<int>(calls::unshare(flags)); }
CKPT_INTERPOSE(int, setns, int fd, int kind) { return to_errno<int>(calls::setns(fd, kind)); }
