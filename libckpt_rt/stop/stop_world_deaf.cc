// Threads that do not take the checkpoint signal (stop_world.h): threads inside exec, and threads that leave
// only libc's signals open.
#include "libckpt_rt/stop/stop_world.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

bool StopWorld::is_stop_by_libc_signal(const siginfo_t& info) const {
  // libc sends its own with tgkill.
  return (info.si_code == SI_QUEUE && info.si_value.sival_ptr == this) ||
         (info.si_code == SI_USER && requested());
}

void StopWorld::begin_exec(int tid) {
  for (;;) {
    for (std::atomic<int>& slot : in_exec_) {
      int free = 0;
      // seq_cst: before the signal is blocked, so that an agent that finds it blocked finds the tid here.
      if (!slot.compare_exchange_strong(free, tid, std::memory_order_seq_cst)) continue;
      // seq_cst with look_at_stalled(): either it sees us here, or we see its signal.
      if (!setxid_of_process_.load(std::memory_order_seq_cst)) return;
      slot.store(0, std::memory_order_seq_cst);
      break;
    }
    sys::call(__NR_sched_yield);
  }
}

void StopWorld::end_exec(int tid) {
  for (std::atomic<int>& slot : in_exec_) {
    if (slot.load(std::memory_order_relaxed) == tid) slot.store(0, std::memory_order_release);
  }
}

bool StopWorld::is_in_exec(int tid) const {
  for (const std::atomic<int>& slot : in_exec_) {
    if (slot.load(std::memory_order_seq_cst) == tid) return true;
  }
  return false;
}

bool StopWorld::libc_signal_is_ours() const {
  KernelSigaction found{};
  return kernel_sigaction(kSetxidSignal, nullptr, &found) == 0 &&
         found.handler == reinterpret_cast<uint64_t>(on_libc_signal_);
}

// libc sets its action when a program first needs it, some versions whenever they do: it may have replaced
// ours since. True: another action was there, and is replaced now.
bool StopWorld::borrow_libc_signal() {
  if (on_libc_signal_ == nullptr) return false;
  const KernelSigaction ours = make_own_action(on_libc_signal_);
  KernelSigaction found{};
  if (kernel_sigaction(kSetxidSignal, nullptr, &found) != 0 || found.handler == ours.handler) return false;
  libc_action_ = found;
  borrowed_ = kernel_sigaction(kSetxidSignal, &ours, nullptr) == 0;
  return borrowed_;
}

void StopWorld::return_libc_signal() {
  // Not back to the default action: a signal of ours that is still queued would end the program.
  if (!borrowed_ || libc_action_.handler <= 1) return;
  // An action that libc has put there meanwhile is newer than the one it had.
  if (libc_signal_is_ours()) kernel_sigaction(kSetxidSignal, &libc_action_, nullptr);
  borrowed_ = false;
}

// The agent takes a SIGSETXID that is left since its thread has ended: the agent has all signals blocked.
void StopWorld::take_setxid_of_process() {
  const uint64_t set = 1ull << (kSetxidSignal - 1);
  const timespec kNow{0, 0};
  sys::call(__NR_rt_sigtimedwait, &set, 0L, &kNow, 8L);
  setxid_of_process_.store(false, std::memory_order_seq_cst);
}

}  // namespace ckpt
