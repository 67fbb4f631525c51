// The library beside a static program of Go (docs/static_programs.md). ckpt-beside has the dynamic linker
// load it, with a libc of its own, in the program's process before the program's first instruction, and calls
// this when the constructors have run.
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

// The calling thread, the only one, may become the program's: libc's rseq area of it is not the kernel's any
// more. The checkpoint's signal of other programs, which a parent may have left blocked; 0: the library is
// not active.
extern "C" __attribute__((visibility("default"))) int ckpt_rt_start_beside(void) {
  using namespace ckpt;
  if (!this_process.active) return 0;
  forget_rseq_area();
  return user_settings().signal;
}
