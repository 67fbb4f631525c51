// What a child of the program has of its parent's state, put right.
#include "libckpt_rt/core/process/fork/child.h"

#include <linux/kcmp.h>

#include "base/locks/lock_ranks.h"
#include "base/memory/fork_path.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/creation.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/descriptors/noted/directory_notices.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/checkpoint/in_force.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/fork/fork_hold.h"
#include "libckpt_rt/core/process/own_files.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/threads/processor_time.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/protect/release_guard.h"
#include "libckpt_rt/protect/watch.h"
#include "libckpt_rt/stop/critical_section.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// A child of clone(CLONE_VM): the page is its parent's, which is new itself. False where a filter (seccomp)
// may kill a process that asks.
bool shares_memory_with_parent() {
  return !is_filtered() && sys::call(__NR_kcmp, sys::getpid(), static_cast<int>(sys::call(__NR_getppid)),
                                     long{KCMP_VM}, 0L, 0L) == 0;
}

// The parent's threads and requests are not the child's, and neither are its images.
void forget_parent() {
  lock_ranks::forget();
  this_process.pid = sys::getpid();
  processor_time::forget();
  job::creation::reset();
  job::connecting::reset();
  job::forget_session();
  own_directory::forget();
  own_files::forget();
  stop_state.world.reset_in_child();
  traced::reset();
  own_threads.forget();
  agent::reset(0);
  critical_section::reset_in_child();
  release_guard::reset_in_child();
  guard::reset(true);
  // Not its count: a thread may be inside, where our signal has found it.
  reset_gate_after_restart();
  futex_words::reset_hold();
  Watch::forget_kept();
  statistics::reset_in_child();
  in_force::reset_in_child();
  this_process.generation = 0;
  if (!this_process.active) return;
  new_run_id(job::own_job.identity.id);
  own_directory::choose_in_child();
}

}  // namespace

void put_child_right() {
  const uint64_t all = ~0ull;
  uint64_t before = 0;
  // Our signal's handler may come in between and ask the same.
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, 8L);
  OwnPage& own = *own_page::page;
  if (!shares_memory_with_parent()) {
    ScopedLock guard(own.putting_right);
    if (own.pid.load(std::memory_order_relaxed) == 0) {
      forget_parent();
      // seq_cst with begin_exec(): either we find the thread here, or it finds that the child is new no more.
      own.pid.store(this_process.pid, std::memory_order_seq_cst);
      const int tid = own.in_exec.load(std::memory_order_seq_cst);
      // `tid` may be that of a child of vfork, long gone.
      if (tid != 0 && sys::call(__NR_tgkill, this_process.pid, tid, 0) == 0) stop_state.world.begin_exec(tid);
    }
  }
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &before, 0L, 8L);
}

namespace hooks {

CKPT_FORK_PATH void in_child_after_fork() {
  // Only the caller exists here.
  processor_time::forget();
  directory_notices::forget();
  aio_contexts::in_child();
  rings::in_child();
  reset_gate_in_child();
  const bool told = own_page::is_wiped_on_fork();
  if (!told && !this_process.active) return;
  if (!told) {
    own_page::page->pid.store(0, std::memory_order_relaxed);
    fork_hold::reset();
  }
  // A checkpoint is under way in the parent: wrappers would ask threads that are not here.
  if (!told || !agent::is_idle()) know_child();
  if (interval::wanted) interval::arm();
}

CKPT_FORK_PATH void begin_exec() {
  job::creation::await_end();
  const int tid = sys::gettid();
  OwnPage& own = *own_page::page;  // behind the call: a restart in it may make that page elsewhere
  int nobody = 0;
  // A stop begins only after the child has been put right, which most that come here never are.
  if (is_new_child() && own.in_exec.compare_exchange_strong(nobody, tid, std::memory_order_seq_cst) &&
      is_new_child())
    return;
  know_child();
  // In a child of vfork this is the parent's memory, and a stop does not look for the child.
  if (this_process.pid == sys::getpid()) stop_state.world.begin_exec(tid);
}

CKPT_FORK_PATH void end_exec() {
  const int tid = sys::gettid();
  OwnPage& own = *own_page::page;
  const bool was_ours = own.in_exec.load(std::memory_order_relaxed) == tid;
  if (was_ours) own.in_exec.store(0, std::memory_order_seq_cst);
  if (!is_new_child() && this_process.pid == sys::getpid()) stop_state.world.end_exec(tid);
}

}  // namespace hooks

}  // namespace ckpt
