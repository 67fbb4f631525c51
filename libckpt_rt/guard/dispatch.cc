// A system call of the program while the guard is open: the kernel raises SIGSYS in its place.
//
// The memory that the call will write to is made writable, and the thread goes on at its gate with all
// registers as they were. A gate is the same instruction at an address that is not trapped, and a jump back.
// So a call waits in the kernel as it would without us: on the program's own stack, with its own mask, no
// frame of ours on any stack and no state but the address behind the instruction. Memory that was made
// writable stays so until the next stop. A stop or a handler of the program finds the thread as if it stood
// at its own instruction (back_out()).
#include <errno.h>
#include <sys/syscall.h>

#include "libckpt_rt/guard/calls.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::guard {

namespace {

constexpr int kUserDispatch = 2;          // SYS_USER_DISPATCH
constexpr unsigned kX86_64 = 0xc000003e;  // AUDIT_ARCH_X86_64

// Made here, without entering the kernel at the program's place.
bool is_about_signals(long nr) {
  return nr == __NR_rt_sigprocmask || nr == __NR_rt_sigaction || nr == __NR_sigaltstack;
}

long make_here(GuardRecord& record, ucontext_t* frame, long nr, const long* args) {
  switch (nr) {
    case __NR_rt_sigprocmask:
      return change_mask(record, frame, args);
    case __NR_rt_sigaction:
      return change_action(args);
    default:
      return change_stack(record, frame, args);
  }
}

}  // namespace

void on_system_call(int signal, siginfo_t* info, void* context) {
  auto* frame = static_cast<ucontext_t*>(context);
  GuardRecord* found = record_of(frame);
  if (found == nullptr) return;
  GuardRecord& record = *found;
  if (info->si_code != kUserDispatch) on_program_signal(signal, info, context);
  record.selector.store(kLetThrough, std::memory_order_relaxed);
  greg_t* r = frame->uc_mcontext.gregs;
  const long nr = info->si_syscall;
  const long args[6] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
  window.calls.fetch_add(1, std::memory_order_relaxed);
  record.busy_count.store(0, std::memory_order_relaxed);  // the call before is over

  if (info->si_arch == kX86_64 && nr == __NR_rt_sigreturn) {
    prepare_signal_return(record, frame);
    record.return_to = static_cast<uint64_t>(r[REG_RIP]);
    r[REG_RIP] = static_cast<greg_t>(window.gates);
    resume(record, frame, kTrap);
  }
  long result = kWait;
  if (info->si_arch == kX86_64 && is_about_signals(nr)) {
    result = make_here(record, frame, nr, args);
    if (result != kWait) {
      r[REG_RAX] = result;
      send_held(record);
      resume(record, frame, kTrap);
    }
  }
  Visitor visitor{[](void*, AddrRange range) { return make_writable(range); }, nullptr};
  if (is_ahead() && changes_mappings(nr)) {
    visitor = {[](void* self, AddrRange range) {
                 open_for_change(*static_cast<GuardRecord*>(self), range);
                 return true;
               },
               &record};
  }
  // These give the kernel memory that it writes to at any time: what is about to be protected must not be
  // among it.
  const bool for_good = is_ahead() && (nr == __NR_set_tid_address || nr == __NR_rseq);
  if (info->si_arch == kX86_64 && nr == __NR_exit) open_for_exit();
  const bool passes = info->si_arch == kX86_64 && !is_about_signals(nr) && !for_good &&
                      (nr == __NR_exit || each_output(nr, args, visitor) == Verdict::kPass);
  if (passes) {
    record.call_has_mask = mask_of_call(nr, args, &record.call_mask);
    record.return_to = static_cast<uint64_t>(r[REG_RIP]);
    r[REG_RIP] = static_cast<greg_t>(gate_of(record));
    send_held(record);
    resume(record, frame, kTrap);
  }
  // The instruction runs again when nothing is protected any more.
  r[REG_RIP] -= 2;
  wait_until_closed(record, frame);
  resume(record, frame, kLetThrough);
}

}  // namespace ckpt::guard
