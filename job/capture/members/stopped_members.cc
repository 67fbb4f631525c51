#include "job/capture/members/stopped_members.h"

#include <errno.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/threads/of_ours/raw_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

struct StoppedMembers::Shared {
  TracerOrders orders;
  void* memory;  // of the tracer
  int parent;
};

namespace {

constexpr size_t kStack = 64 << 10;

}  // namespace

// The agent has all signals blocked, and so has the helper.
long StoppedMembers::start() {
  if (helper_ != 0) return 0;
  auto* stack = static_cast<std::byte*>(arena_.allocate(kStack, 64));
  void* memory = arena_.allocate(StoppedTracer::kBytes, 64);
  auto* place = arena_.allocate(sizeof(Shared), 64);
  if (stack == nullptr || memory == nullptr || place == nullptr) return -ENOMEM;
  shared_ = new (place) Shared{{}, memory, this_process.pid};
  // No exit signal: the program is not told, and its wait(2) does not see it.
  const long pid = ckpt_clone_thread(
      CLONE_VM, stack + kStack, nullptr, nullptr, nullptr,
      [](void* argument) {
        auto* shared = static_cast<Shared*>(argument);
        sys::call(__NR_prctl, PR_SET_PDEATHSIG, long{SIGKILL}, 0L, 0L, 0L);
        if (sys::call(__NR_getppid) == shared->parent) {
          sys::call(__NR_close_range, 0L, ~0u, 0L);
          // A program may ignore SIGCHLD; blocked and by default it is queued.
          const KernelSigaction by_default{};
          kernel_sigaction(SIGCHLD, &by_default, nullptr);
          serve_orders(shared->orders, shared->memory);
        }
        sys::call(__NR_exit_group, 0L);
      },
      shared_);
  if (sys::failed(pid)) return pid;
  helper_ = static_cast<int>(pid);
  return 0;
}

long StoppedMembers::give(TracerOrders::What what, int pid, int signal) {
  const long result = shared_->orders.give(what, pid, signal, helper_, helper_);
  gone_ = gone_ || result == -ECHILD;
  return result;
}

long StoppedMembers::seize(int pid, int signal) {
  if (const long error = start(); error != 0) return error;
  return give(TracerOrders::What::kSeize, pid, signal);
}

int StoppedMembers::stop_signal(int pid) {
  const long signal = give(TracerOrders::What::kStopSignal, pid, 0);
  return signal >= 0 ? static_cast<int>(signal) : -1;
}

void StoppedMembers::expect_signals() {
  if (helper_ != 0) (void)give(TracerOrders::What::kExpect, 0, 0);
}

void StoppedMembers::release_all() {
  if (helper_ == 0) return;
  (void)give(TracerOrders::What::kEnd, 0, 0);
  int status = 0;
  while (sys::call(__NR_wait4, helper_, &status, __WALL, 0L) == -EINTR) {
  }
  helper_ = 0;
}

}  // namespace ckpt::job
