#include "beside/beginning.h"

#include <asm/prctl.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstring>

#include "base/sys.h"

namespace ckpt::beside {

namespace {

constexpr uint64_t kStackSegment = 2, kStrictStackSegment = 4;  // UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
constexpr size_t kMaskBytes = 8;                                // of the kernel's sigset_t

// All signals are blocked. The tracer's SIGCHLD is taken, unless it has become one with an earlier child's;
// that of another child which has become one with the tracer's is sent again.
void take_notice_of(int tracer) {
  const uint64_t set = 1ull << (SIGCHLD - 1);
  const timespec kNow{0, 0};
  siginfo_t info;
  std::memset(&info, 0, sizeof(info));
  if (sys::call(__NR_rt_sigtimedwait, &set, &info, &kNow, kMaskBytes) != SIGCHLD) return;
  if (info.si_pid == tracer) {
    info.si_pid = 0;
    sys::call(__NR_waitid, P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT, nullptr);
  }
  if (info.si_pid != 0) sys::call(__NR_rt_sigqueueinfo, sys::getpid(), SIGCHLD, &info);
}

}  // namespace

Beginning beginning_at(const user_regs_struct& entry, uint64_t mask) {
  Beginning beginning;
  std::memset(&beginning, 0, sizeof(beginning));
  ucontext_t& to = beginning.state;
  to.uc_flags = kStackSegment | kStrictStackSegment;
  to.uc_stack.ss_flags = SS_DISABLE;
  auto& r = to.uc_mcontext.gregs;
  r[REG_R8] = static_cast<greg_t>(entry.r8);
  r[REG_R9] = static_cast<greg_t>(entry.r9);
  r[REG_R10] = static_cast<greg_t>(entry.r10);
  r[REG_R11] = static_cast<greg_t>(entry.r11);
  r[REG_R12] = static_cast<greg_t>(entry.r12);
  r[REG_R13] = static_cast<greg_t>(entry.r13);
  r[REG_R14] = static_cast<greg_t>(entry.r14);
  r[REG_R15] = static_cast<greg_t>(entry.r15);
  r[REG_RDI] = static_cast<greg_t>(entry.rdi);
  r[REG_RSI] = static_cast<greg_t>(entry.rsi);
  r[REG_RBP] = static_cast<greg_t>(entry.rbp);
  r[REG_RBX] = static_cast<greg_t>(entry.rbx);
  r[REG_RDX] = static_cast<greg_t>(entry.rdx);
  r[REG_RAX] = static_cast<greg_t>(entry.rax);
  r[REG_RCX] = static_cast<greg_t>(entry.rcx);
  r[REG_RSP] = static_cast<greg_t>(entry.rsp);
  r[REG_RIP] = static_cast<greg_t>(entry.rip);
  r[REG_EFL] = static_cast<greg_t>(entry.eflags);
  r[REG_CSGSFS] = static_cast<greg_t>(entry.cs | entry.ss << 48);
  // Without vector registers the kernel gives those that a program begins with.
  to.uc_mcontext.fpregs = nullptr;
  std::memcpy(&to.uc_sigmask, &mask, kMaskBytes);
  beginning.fs_base = entry.fs_base;
  return beginning;
}

void begin_behind_tracer(int tracer, const Beginning* beginning) {
  while (sys::call(__NR_wait4, tracer, nullptr, __WALL, nullptr) == -EINTR) {
  }
  take_notice_of(tracer);
  // Behind this nothing may look for a stack protector.
  sys::call(__NR_arch_prctl, ARCH_SET_FS, beginning->fs_base);
  asm volatile("mov %0, %%rsp\n\tmov %1, %%eax\n\tsyscall\n\tud2"
               :
               : "r"(&beginning->state), "i"(__NR_rt_sigreturn)
               : "memory");
  __builtin_unreachable();
}

}  // namespace ckpt::beside
