// Signals while the guard is open: faults, and those of the program.
//
// Every handler runs on our alternate stack first, which is never protected, so that the kernel can always
// push its frame. We then deliver the signal to the program's handler as the kernel would have. The frame is
// moved to the stack on which the program expects it, with the program's mask and alternate stack in it. The
// handler is entered with the registers and the mask that the kernel would have given it.
#include <errno.h>
#include <sys/mman.h>

#include <cstring>

#include "base/clock.h"
#include "copier/copier.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::guard {

namespace {

constexpr uint64_t kSaRestorer = 0x04000000;
constexpr int32_t kAutodisarm = 1 << 31;
constexpr uint64_t kUnblockable = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1);
constexpr uint64_t kRedZone = 128;
constexpr size_t kContextBytes = 304;  // struct ucontext of the kernel, which is shorter than libc's
constexpr uint64_t kFlagDirection = 1 << 10, kFlagTrap = 1 << 8, kFlagResume = 1 << 16;

struct SignalFrame {  // struct rt_sigframe
  uint64_t restorer;
  std::byte context[kContextBytes];
  siginfo_t info;
};
static_assert(sizeof(SignalFrame) == 8 + kContextBytes + 128);

// Bytes of the extended state that the frame points to.
size_t state_bytes(const void* state) {
  struct {
    uint32_t magic, extended_size;
  } words;
  std::memcpy(&words, static_cast<const std::byte*>(state) + 464, sizeof(words));
  return words.magic == 0x46505853 ? words.extended_size : 512;  // FP_XSTATE_MAGIC1
}

void set_default(int signal) {
  const KernelSigaction none{};
  kernel_sigaction(signal, &none, nullptr);
}

// The kernel does what it does with a signal that has no handler: for a fault, when the instruction runs
// again.
[[noreturn]] void leave_to_kernel(GuardRecord& record, int signal, siginfo_t* info, ucontext_t* frame) {
  set_default(signal);
  if (info->si_code <= 0 || signal == SIGSYS) {
    sys::call(__NR_rt_tgsigqueueinfo, this_process.pid, sys::gettid(), signal, info);
    kernel_mask(frame) &= ~bit(signal);
  }
  resume(record, frame, kTrap);
}

bool uses_alternate(const GuardRecord& record, const ucontext_t* frame, bool wanted) {
  const KernelStack& stack = record.program_stack;
  return wanted && stack.bytes != 0 &&
         !on_stack(stack, static_cast<uint64_t>(frame->uc_mcontext.gregs[REG_RSP]));
}

[[noreturn]] void deliver(GuardRecord& record, int signal, siginfo_t* info, ucontext_t* frame,
                          uint8_t selector) {
  const auto ip = static_cast<uint64_t>(frame->uc_mcontext.gregs[REG_RIP]);
  const bool inside = record_of(reinterpret_cast<void*>(frame->uc_mcontext.gregs[REG_RSP])) != nullptr;
  // Sent while the thread is in a handler of ours, or at its very end: it comes with the next system call.
  if (info->si_code <= 0 && (inside || (signal == window.faults.signal && ip - window.gates < kGateBytes))) {
    hold(record, *info);
    resume(record, frame, selector);
  }
  if (inside) {
    // A fault in a handler of ours that is the program's own doing: a stack that has no room. The kernel
    // would end the program as well.
    set_default(signal);
    resume(record, frame, kLetThrough);
  }
  window.signals.fetch_add(1, std::memory_order_relaxed);
  const bool in_call = back_out(record, frame);
  greg_t* r = frame->uc_mcontext.gregs;
  // A call that had put a mask of its own in place is left with that one.
  const bool own_mask = in_call && record.call_has_mask && r[REG_RAX] == -EINTR;
  const bool blocked =
      ((own_mask ? record.call_mask : record.virtual_mask) & window.forced & bit(signal)) != 0;
  const bool sent = info->si_code <= 0;
  if (sent && blocked) {
    hold(record, *info);
    resume(record, frame, kTrap);
  }
  KernelSigaction action;
  {
    ScopedLock guard(window.actions_lock);
    action = window.actions[signal];
    if (action.handler > 1 && (action.flags & uint64_t{static_cast<uint32_t>(SA_RESETHAND)}) != 0) {
      window.actions[signal].handler = 0;
      install(signal, window.actions[signal]);
    }
  }
  if (action.handler <= 1 && (window.forced & bit(signal)) == 0) {
    // Another thread has taken the handler away since the kernel chose it: the kernel chooses again.
    sys::call(__NR_rt_tgsigqueueinfo, this_process.pid, sys::gettid(), signal, info);
    resume(record, frame, kTrap);
  }
  if (action.handler == 1 && sent) resume(record, frame, kTrap);
  if (action.handler <= 1 || blocked) leave_to_kernel(record, signal, info, frame);

  const KernelStack stack = record.program_stack;
  const auto [context, moved_info] =
      move_frame(record, frame, *info, action.restorer, (action.flags & SA_ONSTACK) != 0);
  kernel_stack(context) = stack;
  kernel_mask(context) |= record.virtual_mask;
  if ((stack.flags & kAutodisarm) != 0)
    record.program_stack = {0, SS_DISABLE, 0, 0};  // on whatever stack it runs

  uint64_t mask = (own_mask ? record.call_mask : kernel_mask(context)) | action.mask;
  if ((action.flags & SA_NODEFER) == 0) mask |= bit(signal);
  mask &= ~kUnblockable;
  record.virtual_mask = mask & window.forced;
  record.call_has_mask = false;

  // Our own frame becomes the way into the handler.
  kernel_mask(frame) = mask & ~window.forced;
  r[REG_RIP] = static_cast<greg_t>(action.handler);
  r[REG_RSP] = reinterpret_cast<greg_t>(context) - 8;
  r[REG_RDI] = signal;
  r[REG_RSI] = reinterpret_cast<greg_t>(moved_info);
  r[REG_RDX] = reinterpret_cast<greg_t>(context);
  r[REG_RAX] = 0;
  r[REG_EFL] &= ~static_cast<greg_t>(kFlagDirection | kFlagTrap | kFlagResume);
  frame->uc_mcontext.fpregs = nullptr;  // a handler begins with fresh extended state
  resume(record, frame, kTrap);
}

bool is_ours(GuardRecord& record, int signal, const siginfo_t* info) {
  if (signal != window.faults.signal || info->si_code != window.faults.code) return false;
  const Addr page = Addr::of(info->si_addr).page_down();
  if (is_ahead()) return make_writable_ahead(record, page);
  bool copied = false;
  if (!window.copier->tracks(page, &copied)) return false;
  // Another thread may have made it writable in between; but once only.
  if (copied && record.found_copied == page.value) return false;
  record.found_copied = copied ? page.value : 0;
  return true;
}

}  // namespace

MovedFrame move_frame(const GuardRecord& record, const ucontext_t* frame, const siginfo_t& info,
                      uint64_t restorer, bool wants_alternate) {
  const KernelStack& stack = record.program_stack;
  uint64_t top = uses_alternate(record, frame, wants_alternate)
                     ? stack.start + stack.bytes
                     : static_cast<uint64_t>(frame->uc_mcontext.gregs[REG_RSP]) - kRedZone;
  auto* state = frame->uc_mcontext.fpregs;
  const size_t bytes = state != nullptr ? state_bytes(state) : 0;
  top = (top - bytes) & ~63ull;
  auto* new_state = reinterpret_cast<std::byte*>(top);
  auto* moved = reinterpret_cast<SignalFrame*>(((top - sizeof(SignalFrame)) & ~15ull) - 8);
  auto* context = reinterpret_cast<ucontext_t*>(moved->context);
  // Stores that fault, if they must: the fault's handler runs on this very stack.
  std::memcpy(moved->context, frame, kContextBytes);
  moved->info = info;
  moved->restorer = restorer;
  if (bytes != 0) {
    std::memcpy(new_state, state, bytes);
    std::memcpy(&context->uc_mcontext.fpregs, &new_state, sizeof(new_state));
  }
  return {context, &moved->info};
}

void on_fault(int signal, siginfo_t* info, void* context) {
  auto* frame = static_cast<ucontext_t*>(context);
  GuardRecord& record = *record_of(frame);
  const uint8_t selector = record.selector.exchange(kLetThrough, std::memory_order_relaxed);
  const int64_t since = now_ns();
  if (!is_ours(record, signal, info)) {
    record.found_copied = 0;
    deliver(record, signal, info, frame, selector);
  }
  const Addr page = Addr::of(info->si_addr).page_down();
  if (is_ahead()) {
    window.copier->note_wait(static_cast<uint64_t>(now_ns() - since));
    resume(record, frame, selector);
  }
  const bool writable = make_writable({page, page + kPageSize});
  window.copier->note_fault(static_cast<uint64_t>(now_ns() - since));
  if (!writable && selector == kTrap) {
    wait_until_closed(record, frame);
    resume(record, frame, kLetThrough);
  }
  resume(record, frame, selector);
}

void on_program_signal(int signal, siginfo_t* info, void* context) {
  auto* frame = static_cast<ucontext_t*>(context);
  GuardRecord& record = *record_of(frame);
  record.selector.store(kLetThrough, std::memory_order_relaxed);
  const uint64_t fault = bit(window.faults.signal);
  sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &fault, 0L, 8L);
  deliver(record, signal, info, frame, kTrap);
}

// What the kernel is told when the program wants `wanted`.
void install(int signal, const KernelSigaction& wanted) {
  KernelSigaction told = wanted;
  const bool fault = signal == window.faults.signal, call = signal == SIGSYS;
  if (fault || call || wanted.handler > 1) {
    // Their masks leave out the faults: a handler of ours may touch protected memory.
    told.mask = ~bit(window.faults.signal);
    told.restorer = window.gates;
    const uint64_t passed_on =
        wanted.handler > 1 ? wanted.flags & (SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT) : 0;
    told.flags = passed_on | SA_SIGINFO | SA_ONSTACK | SA_NODEFER | kSaRestorer;
    told.handler = fault  ? reinterpret_cast<uint64_t>(&on_fault)
                   : call ? reinterpret_cast<uint64_t>(&on_system_call)
                          : reinterpret_cast<uint64_t>(&on_program_signal);
  }
  kernel_sigaction(signal, &told, nullptr);
}

bool on_stack(const KernelStack& stack, uint64_t sp) {
  return (stack.flags & kAutodisarm) == 0 && stack.bytes != 0 && sp > stack.start &&
         sp - stack.start <= stack.bytes;
}

long set_program_stack(GuardRecord& record, const KernelStack& wanted, uint64_t sp) {
  constexpr uint64_t kLeast = 2048;  // MINSIGSTKSZ
  if (on_stack(record.program_stack, sp)) return -EPERM;
  const int32_t mode = wanted.flags & ~kAutodisarm;
  if (mode != SS_DISABLE && mode != SS_ONSTACK && mode != 0) return -EINVAL;
  if (mode == SS_DISABLE) {
    record.program_stack = {0, wanted.flags, 0, 0};
    return 0;
  }
  if (wanted.bytes < kLeast) return -ENOMEM;
  record.program_stack = wanted;
  record.program_stack.pad = 0;
  return 0;
}

long change_stack(GuardRecord& record, ucontext_t* frame, const long* args) {
  const auto sp = static_cast<uint64_t>(frame->uc_mcontext.gregs[REG_RSP]);
  KernelStack wanted{};
  if (args[0] != 0 && !copy_in(&wanted, static_cast<uint64_t>(args[0]), sizeof(wanted))) return -EFAULT;
  KernelStack before = record.program_stack;
  before.flags = (before.flags & kAutodisarm) | (before.bytes == 0                    ? SS_DISABLE
                                                 : on_stack(record.program_stack, sp) ? SS_ONSTACK
                                                                                      : 0);
  if (args[0] != 0) {
    const long r = set_program_stack(record, wanted, sp);
    if (r != 0) return r;
  }
  return args[1] == 0 || copy_out(static_cast<uint64_t>(args[1]), &before, sizeof(before)) ? 0 : -EFAULT;
}

long change_mask(GuardRecord& record, ucontext_t* frame, const long* args) {
  if (args[3] != 8) return -EINVAL;
  KernelMask& kernel = kernel_mask(frame);
  const uint64_t before = kernel | record.virtual_mask;
  if (args[1] != 0) {
    uint64_t set = 0, after = before;
    if (!copy_in(&set, static_cast<uint64_t>(args[1]), sizeof(set))) return -EFAULT;
    switch (static_cast<int>(args[0])) {
      case SIG_BLOCK:
        after |= set;
        break;
      case SIG_UNBLOCK:
        after &= ~set;
        break;
      case SIG_SETMASK:
        after = set;
        break;
      default:
        return -EINVAL;
    }
    after &= ~kUnblockable;
    record.virtual_mask = after & window.forced;
    kernel = after & ~window.forced;
  }
  return args[2] == 0 || copy_out(static_cast<uint64_t>(args[2]), &before, sizeof(before)) ? 0 : -EFAULT;
}

long change_action(const long* args) {
  const int signal = static_cast<int>(args[0]);
  if (args[3] != 8 || signal < 1 || signal > 64 || signal == SIGKILL || signal == SIGSTOP) return -EINVAL;
  // The program may handle SIGSYS when the guard needs it no more.
  if (args[1] != 0 &&
      (signal == SIGSYS || signal == own_signal.number || stop_state.world.has_borrowed(signal)))
    return kWait;
  KernelSigaction wanted{}, before;
  if (args[1] != 0 && !copy_in(&wanted, static_cast<uint64_t>(args[1]), sizeof(wanted))) return -EFAULT;
  {
    ScopedLock guard(window.actions_lock);
    before = window.actions[signal];
    if (args[1] != 0) {
      wanted.mask &= ~kUnblockable;
      window.actions[signal] = wanted;
      install(signal, wanted);
    }
  }
  return args[2] == 0 || copy_out(static_cast<uint64_t>(args[2]), &before, sizeof(before)) ? 0 : -EFAULT;
}

// The program returns from a handler: what the kernel will restore is what it must have while the guard is
// open.
void prepare_signal_return(GuardRecord& record, ucontext_t* frame) {
  const auto at = static_cast<uint64_t>(frame->uc_mcontext.gregs[REG_RSP]);
  record.stack_before_return = record.program_stack;
  record.virtual_mask_before_return = record.virtual_mask;
  // Only this much of it is the kernel's.
  alignas(ucontext_t) std::byte bytes[sizeof(ucontext_t)];
  if (!copy_in(bytes, at, kContextBytes)) return;  // the kernel will refuse it as well
  auto* context = reinterpret_cast<ucontext_t*>(bytes);
  record.virtual_mask = kernel_mask(context) & window.forced;
  kernel_mask(context) &= ~window.forced;
  set_program_stack(record, kernel_stack(context),
                    static_cast<uint64_t>(context->uc_mcontext.gregs[REG_RSP]));
  kernel_stack(context) = stack_of(record);
  copy_out(at, bytes, kContextBytes);
}

}  // namespace ckpt::guard
