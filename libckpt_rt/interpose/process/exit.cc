// The end of the process: while its image is written for a job's checkpoint, the process waits for that. Else
// every short-lived child would spoil the checkpoint of the job. exit() comes here by our destructor, which
// runs after the program's own exit handlers.
#include <unistd.h>

#include "base/memory/fork_path.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

[[gnu::destructor(101)]] CKPT_FORK_PATH void at_exit() { hooks::before_end(); }

[[noreturn]] CKPT_FORK_PATH void end(int status) {
  hooks::before_end();
  for (;;) sys::call(__NR_exit_group, long{status});
}

}  // namespace

extern "C" CKPT_FORK_PATH void ckpt_libc__exit(int status) __asm__("_exit");
CKPT_INTERPOSE(void, _exit, int status) { end(status); }
CKPT_INTERPOSE(void, _Exit, int status) { end(status); }
