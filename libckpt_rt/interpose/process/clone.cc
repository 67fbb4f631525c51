// Processes that a program makes by clone(), or by syscall(2) with SYS_fork, SYS_clone or SYS_clone3: they
// are announced as those of fork() and vfork() are. Processes that a program makes by a system call
// instruction of its own are not announced: they are found when the job's members are listed again.
#include "libckpt_rt/interpose/process/clone.h"

#include <linux/sched.h>
#include <stdarg.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/program_memory.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

struct NewTask {
  uint64_t flags = 0, stack = 0;

  bool is_thread() const { return (flags & CLONE_THREAD) != 0; }
  bool has_own_memory() const { return (flags & CLONE_VM) == 0; }
  bool is_waited_for() const { return (flags & CLONE_VFORK) != 0; }
  bool forgets_handlers() const { return (flags & CLONE_CLEAR_SIGHAND) != 0; }
};

// False: the kernel will refuse it.
bool read_task(long nr, long a, long b, NewTask& task) {
  if (nr == __NR_clone) {
    task = {static_cast<uint64_t>(a), static_cast<uint64_t>(b)};
  } else if (nr == __NR_vfork) {
    task.flags = CLONE_VM | CLONE_VFORK;
  } else if (nr == __NR_clone3) {
    clone_args args;
    constexpr size_t kLeast = 64;  // CLONE_ARGS_SIZE_VER0
    const auto* from = reinterpret_cast<const void*>(a);
    if (static_cast<size_t>(b) < kLeast || !program_memory::may_read(from, kLeast)) return false;
    std::memcpy(&args, from, kLeast);
    task = {args.flags, args.stack};
  }
  return true;
}

using Function = int (*)(void*);
using Clone = int(Function, void*, int, void*, ...);

// At the top of the child's stack, where libc puts the same: the parent's stack may be one that the child
// does not have as it is (MADV_DONTFORK, MADV_WIPEONFORK, shared memory).
struct ChildCall {
  Function function;
  void* argument;
};

int run_child(void* call) {
  hooks::in_child_after_fork();
  const auto [function, argument] = *static_cast<const ChildCall*>(call);
  const int status = function(argument);
  hooks::before_end();
  return status;
}

// A child that is made behind this word and not under a frame of ours. While it runs a parent that waits for
// it (CLONE_VFORK) is in no fork that others could wait for.
void announce(const NewTask& task) {
  if (task.is_thread()) return;
  if (task.has_own_memory()) {
    if (task.is_waited_for()) hooks::note_wait_for_child();
    hooks::before_fork();
    hooks::after_fork();
  } else {
    hooks::before_spawn();
  }
}

}  // namespace

namespace ckpt::calls {

long fork_call(long nr, long a, long b, long c, long d, long e) {
  NewTask task;
  const bool reads = read_task(nr, a, b, task);
  hooks::before_fork();
  // The child has ours all the same: until then an asker sees that it has none, and waits.
  const int signal = hooks::checkpoint_signal.load(std::memory_order_relaxed);
  KernelSigaction ours{};
  const bool gives = reads && task.forgets_handlers() && kernel_sigaction(signal, nullptr, &ours) == 0;
  const long pid = sys::call(nr, a, b, c, d, e);
  if (pid == 0) {
    if (gives) kernel_sigaction(signal, &ours, nullptr);
    hooks::in_child_after_fork();
  } else {
    hooks::after_fork();
  }
  return pid;
}

}  // namespace ckpt::calls

// For syscall.S, before a call that makes a process or a thread. 1: calls::fork_call() makes it. 0: it is
// made without a frame of ours below the caller's, which a child on another stack, or on its parent's, could
// not return to.
extern "C" [[gnu::visibility("hidden")]] int ckpt_before_clone(long nr, long a, long b) {
  NewTask task;
  if (!read_task(nr, a, b, task)) return 0;
  if (task.has_own_memory() && task.stack == 0 && !task.is_waited_for()) return 1;
  announce(task);
  return 0;
}

// The child begins in `function`, on a stack of its own, so it never comes back here. libc does not look at
// arguments behind `argument` that were not given, either.
CKPT_INTERPOSE(int, clone, Function function, void* stack, int flags, void* argument, ...) {
  va_list more;
  va_start(more, argument);
  void* const parent_tid = va_arg(more, void*);
  void* const tls = va_arg(more, void*);
  void* const child_tid = va_arg(more, void*);
  va_end(more);
  const NewTask task{static_cast<unsigned>(flags), reinterpret_cast<uintptr_t>(stack)};
  Clone* const real = real_function(RealFunction::kClone).as<Clone>();
  if (!task.has_own_memory() || task.is_waited_for() || function == nullptr || stack == nullptr) {
    announce(task);
    return real(function, stack, flags, argument, parent_tid, tls, child_tid);
  }
  constexpr uintptr_t kAligned = 16;
  auto* const call = reinterpret_cast<ChildCall*>((task.stack & ~(kAligned - 1)) - sizeof(ChildCall));
  *call = {function, argument};
  hooks::before_fork();
  const int pid = real(run_child, call, flags, call, parent_tid, tls, child_tid);
  hooks::after_fork();
  return pid;
}
CKPT_INTERPOSE_ALIAS(clone, __clone);
