#include "libckpt_rt/interpose_unblock.h"

#include <signal.h>
#include <ucontext.h>

#include <atomic>

#include "base/sys.h"
#include "libckpt_rt/interpose_mask.h"
#include "libckpt_rt/interrupted_call.h"
#include "libckpt_rt/kernel_sigaction.h"
#include "libckpt_rt/preload_rules.h"

extern "C" const char __restore_rt[];

namespace ckpt {
namespace {

constexpr int kSetxidSignal = 33;
constexpr uint64_t kMark = 0x636b70745f756e62;  // in si_value: it is we who ask

// libc's handler behind ours; 0 none yet. Only ever what the kernel said was installed.
std::atomic<uint64_t> libc_handler{0};

void on_setxid_signal(int signal, siginfo_t* info, void* context) {
  auto* frame = static_cast<ucontext_t*>(context);
  if (info->si_code == SI_QUEUE && reinterpret_cast<uint64_t>(info->si_value.sival_ptr) == kMark) {
    *reinterpret_cast<uint64_t*>(&frame->uc_sigmask) &= ~checkpoint_bit();
    fix_interrupted_call(frame);  // our interruption, like a stop's
    return;
  }
  uint64_t next = libc_handler.load(std::memory_order_acquire);
  if (next > 1) reinterpret_cast<void (*)(int, siginfo_t*, void*)>(next)(signal, info, context);
}

// sigqueue to one thread: siginfo as the kernel lays it out.
struct QueuedInfo {
  int signal, error, code, pad;
  int pid, uid;
  uint64_t value;
  char rest[128 - 32];
};
static_assert(sizeof(QueuedInfo) == 128);

}  // namespace

long unblock_in_thread(int tid) {
  const auto ours = reinterpret_cast<uint64_t>(on_setxid_signal);
  KernelSigaction action{};
  long r = kernel_sigaction(kSetxidSignal, nullptr, &action);
  if (r != 0) return r;
  if (action.handler != ours) {
    // release: a thread that runs ours sees libc's.
    libc_handler.store(action.handler, std::memory_order_release);
    KernelSigaction wanted{ours, SA_SIGINFO | SA_RESTART | 0x04000000,
                           reinterpret_cast<uint64_t>(__restore_rt), ~uint64_t{0}};
    r = kernel_sigaction(kSetxidSignal, &wanted, nullptr);
    if (r != 0) return r;
  }
  QueuedInfo info{};
  info.signal = kSetxidSignal;
  info.code = SI_QUEUE;
  info.pid = sys::getpid();
  info.value = kMark;
  return sys::call(__NR_rt_tgsigqueueinfo, sys::getpid(), tid, kSetxidSignal, &info);
}

}  // namespace ckpt
