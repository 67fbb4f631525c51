// sigaltstack(2): whose stack is whose is noted, since the kernel tells each thread of its own alone.
#include <signal.h>

#include "libckpt_rt/core/kernel/alternate_stacks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long sigaltstack(const stack_t* wanted, stack_t* old) {
  auto call = [](const stack_t* to, stack_t* from) { return sys::call(__NR_sigaltstack, to, from); };
  stack_t told{}, had{};
  if (wanted == nullptr || !program_memory::read(told, wanted) || call(nullptr, &had) != 0)
    return call(wanted, old);
  alternate_stacks::before(told);
  const long r = call(wanted, old);
  if (r == 0 && (had.ss_sp != told.ss_sp || (told.ss_flags & SS_DISABLE) != 0)) alternate_stacks::after(had);
  return r;
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(int, sigaltstack, const stack_t* wanted, stack_t* old) {
  return to_errno<int>(calls::sigaltstack(wanted, old));
}
