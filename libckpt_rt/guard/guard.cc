#include "libckpt_rt/guard/guard.h"

#include <errno.h>
#include <linux/rseq.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cstring>

#include "base/clock.h"
#include "base/memory/own_place.h"
#include "base/sys.h"
#include "copier/copier.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

extern "C" {
[[noreturn]] void ckpt_call_on_stack(void* stack_top, void (*fn)(void*), void* arg);
[[noreturn]] void ckpt_signal_return(ucontext_t* frame);
}

namespace ckpt::guard {

constinit Window window;

namespace {

constexpr int kSetDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH
constexpr uint64_t kAllSignals = ~0ull;

long set_dispatch(GuardRecord& record, bool on) {
  if (on)
    return sys::call(__NR_prctl, kSetDispatch, 1L, window.gates, window.gates_end - window.gates,
                     &record.selector);
  return sys::call(__NR_prctl, kSetDispatch, 0L, 0L, 0L, 0L);
}

// sigaltstack(2) while the thread is on the stack that is to be replaced: the kernel looks at nothing but the
// stack pointer. (Up to Linux 6.11 the end of a handler could do it; since then a frame on the stack cannot.)
void change_stack_below(GuardRecord& record, const KernelStack& stack) {
  long r = __NR_sigaltstack;
  asm volatile(
      "movq %%rsp, %%r12\n\t"
      "movq %[below], %%rsp\n\t"
      "syscall\n\t"
      "movq %%r12, %%rsp"
      : "+a"(r)
      : "D"(&stack), "S"(0L), [below] "r"(stack_of(record).start)
      : "rcx", "r11", "r12", "memory");
}

// Is what the kernel has another action than what the program wants? Where it is the same it is not set
// again: to set SIG_DFL drops a pending SIGURG or SIGCHLD.
bool is_changed(int signal, const KernelSigaction& wanted) {
  return wanted.handler > 1 || (window.forced & bit(signal)) != 0;
}

// For a thread of which the stop knows no rseq area. 0: it has none.
long has_unknown_rseq() {
  struct rseq area {};
  long r = sys::call(__NR_rseq, &area, 32L, 0L, 0x53053053L);
  if (r == 0) sys::call(__NR_rseq, &area, 32L, RSEQ_FLAG_UNREGISTER, 0x53053053L);
  return r == 0 || r == -ENOSYS ? 0 : 1;
}

}  // namespace

uint64_t bit(int signal) { return 1ull << (signal - 1); }
void unblock(uint64_t signals) { sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &signals, 0L, 8L); }
void block_all() { sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &kAllSignals, 0L, 8L); }

// The thread was stopped, the guard has been opened, and it has not run since. The thread is on the stack of
// its record now: from here on it may write to protected memory.
void enlist(void* argument) {
  auto* frame = static_cast<ucontext_t*>(argument);
  GuardRecord& record = *record_of(&argument);
  const KernelStack ours = stack_of(record);
  if (!record.enlisted) {
    record.program_stack = kernel_stack(frame);
    record.enlisted = sys::call(__NR_sigaltstack, &ours, 0L) == 0;
  }
  record.found_copied = 0;
  if (record.enlisted) unblock(bit(window.faults.signal));
  if (!record.counted) {
    record.counted = true;
    window.enlisted.fetch_add(1, std::memory_order_release);
    if (is_ahead()) futex_wake(window.enlisted);
  }
  if (record.enlisted && !record.dispatched && window.faults.usable_here())
    record.dispatched = set_dispatch(record, true) == 0;
  if (!record.dispatched) {
    // The thread could not unprotect what it writes to: it waits for the end of the guard.
    wait_until_closed(record, frame, false);
    send_held(record);
    show_program_stack(record, frame);
    fix_interrupted_call(frame);
    ckpt_signal_return(frame);
  }
  fix_interrupted_call(frame);
  kernel_stack(frame) = ours;
  record.virtual_mask = kernel_mask(frame) & window.forced;
  kernel_mask(frame) &= ~window.forced;
  resume(record, frame, kTrap);
}

Result<void> prepare() {
  if (window.memory.size() != 0) return {};
  constexpr uint64_t kGates = ((kMostThreads + 1) * kGateBytes + kPageSize - 1) & ~(kPageSize - 1);
  constexpr uint64_t kBytes = kMostThreads * kBlockBytes + kBlockBytes + kGates;
  const long p = map_own(kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (sys::failed(p)) {
    return make_error(ExitCode::kUnavailable, static_cast<int>(p),
                      "no address space for the guard; raise the limit (ulimit -v)");
  }
  const auto start = static_cast<uint64_t>(p);
  const uint64_t blocks = (start + kGates + kBlockBytes - 1) & ~(kBlockBytes - 1);
  auto* code = reinterpret_cast<uint8_t*>(start);
  constexpr uint8_t kReturn[] = {0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05, 0xf4};  // mov $15, %eax; syscall; hlt
  std::memcpy(code, kReturn, sizeof(kReturn));
  for (uint32_t i = 0; i < kMostThreads; ++i) {
    const uint64_t gate = start + (i + 1) * kGateBytes;
    const uint64_t slot = blocks + i * kBlockBytes + offsetof(GuardRecord, return_to);
    const auto distance = static_cast<int32_t>(slot - (gate + 8));
    uint8_t bytes[8] = {0x0f, 0x05, 0xff, 0x25};  // syscall; jmp *return_to(%rip)
    std::memcpy(bytes + 4, &distance, sizeof(distance));
    std::memcpy(reinterpret_cast<void*>(gate), bytes, sizeof(bytes));
  }
  if (const long r = sys::call(__NR_mprotect, start, kGates, PROT_READ | PROT_EXEC); r != 0) {
    sys::call(__NR_munmap, start, kBytes);
    return make_error(ExitCode::kUnavailable, static_cast<int>(r),
                      "this system does not let a program make code ({})", errno_name(static_cast<int>(r)));
  }
  window.gates = start;
  window.gates_end = start + kGates;
  window.blocks = blocks;
  window.memory = {Addr{start}, Addr{start} + kBytes};
  return {};
}

AddrRange own_range() { return window.memory; }

const char* refuses(const ThreadSlot* stopped) {
  uint32_t threads = 0;
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    ++threads;
    if (s->rseq != 0) continue;
    long unknown = 0;
    stop_state.world.run_on(
        const_cast<ThreadSlot&>(*s), [](void* answer) { *static_cast<long*>(answer) = has_unknown_rseq(); },
        &unknown);
    if (unknown != 0) return "a thread has restartable sequences that libc does not know of";
  }
  static_assert(kMostThreads == 2048);
  if (threads > kMostThreads) return "it has more than 2048 threads";
  KernelSigaction action{};
  if (kernel_sigaction(SIGSYS, nullptr, &action) != 0 || action.handler != 0)
    return "it handles or ignores SIGSYS itself";
  return nullptr;
}

void open_stopped(Copier& copier, const Faults& faults, Arming* arming, GuardedMemory* memory) {
  window.arming = arming;
  window.guarded = memory;
  window.faults = faults;
  window.forced = bit(SIGSYS) | bit(faults.signal);
  window.next_record.store(0, std::memory_order_relaxed);
  window.enlisted.store(0, std::memory_order_relaxed);
  window.calls = window.waited = window.signals = 0;
  window.longest_wait_ns = 0;
  reopen_stopped(copier);
}

void reopen_stopped(Copier& copier) {
  window.copier = &copier;
  for (int signal = 1; signal <= 64; ++signal) {
    KernelSigaction& action = window.actions[signal];
    action = {};
    if (signal == SIGKILL || signal == SIGSTOP || signal == own_signal.number ||
        stop_state.world.has_borrowed(signal))
      continue;
    kernel_sigaction(signal, nullptr, &action);
    if (is_changed(signal, action)) install(signal, action);
  }
  window.open.fetch_add(1, std::memory_order_release);  // the release of the threads publishes it
}

void close_stopped() {
  for (int signal = 1; signal <= 64; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP || signal == own_signal.number ||
        stop_state.world.has_borrowed(signal))
      continue;
    if (is_changed(signal, window.actions[signal]))
      kernel_sigaction(signal, &window.actions[signal], nullptr);
  }
  window.copier = nullptr;
  window.arming = nullptr;
  window.open.fetch_add(1, std::memory_order_release);
  futex_wake(window.open);
}

void await_enlisted(uint32_t threads) {
  for (uint32_t n; (n = window.enlisted.load(std::memory_order_acquire)) < threads;)
    futex_wait(window.enlisted, n);
}

Counters counters() {
  return {window.calls.load(), window.waited.load(), window.signals.load(), window.longest_wait_ns.load()};
}

void reset(bool memory_stays) {
  window.open.store(0, std::memory_order_relaxed);
  window.copier = nullptr;
  window.arming = nullptr;
  ++window.generation;
  new (&window.actions_lock) FutexLock<LockRank::kActions>;
  if (memory_stays) return;
  window.gates = window.gates_end = window.blocks = 0;
  window.memory = {};
}

Handler::Handler(ucontext_t* frame) : frame_(frame), record_(record_of(frame)) {
  if (record_ == nullptr) return;
  selector_ = record_->selector.exchange(kLetThrough, std::memory_order_relaxed);
  // The steps that follow may have to write to the program's stack.
  unblock(bit(window.faults.signal));
  back_out(*record_, frame);
}

void Handler::leave(bool stood) {
  if (record_ == nullptr) {
    if (!stood || !is_open()) return;
    const uint32_t index = window.next_record.fetch_add(1, std::memory_order_relaxed);
    auto* record = new (reinterpret_cast<void*>(window.blocks + index * kBlockBytes)) GuardRecord;
    record->index = index;
    ckpt_call_on_stack(reinterpret_cast<std::byte*>(record) + kBlockBytes, &enlist, frame_);
  }
  if (is_open()) {
    fix_interrupted_call(frame_);
    resume(*record_, frame_, selector_);
  }
  if (record_of(reinterpret_cast<void*>(frame_->uc_mcontext.gregs[REG_RSP])) != nullptr) {
    // The thread was waiting in a handler of ours, which takes the guard off itself; no stop may come before
    // that.
    record_->left = true;
    kernel_mask(frame_) = kAllSignals;
  } else {
    take_guard_off(*record_, frame_);
  }
  block_all();
}

void show_program_stack(const GuardRecord& record, ucontext_t* frame) {
  kernel_stack(frame) = record.program_stack;
  if (record.program_stack.bytes == 0) kernel_stack(frame).flags = SS_DISABLE;
}

void leave_dispatch(GuardRecord& record) {
  if (record.dispatched) set_dispatch(record, false);
  record.dispatched = false;
}

void take_guard_off(GuardRecord& record, ucontext_t* frame) {
  if (record.dispatched) {
    set_dispatch(record, false);
    show_program_stack(record, frame);
    change_stack_below(record, kernel_stack(frame));
    kernel_mask(frame) |= record.virtual_mask;
    record.dispatched = false;
  }
  record.virtual_mask = 0;  // the kernel keeps blocked what is blocked
  send_held(record);
}

void wait_until_closed(GuardRecord& record, ucontext_t* shown, bool take_off) {
  const uint32_t seen = window.open.load(std::memory_order_acquire);
  const int64_t since = now_ns();
  window.waited.fetch_add(1, std::memory_order_relaxed);
  record.shown = shown;
  // Only our own signal is let in. The stop that closes the guard returns here, with all signals blocked. The
  // one that ends protection ahead does not return here.
  unblock(bit(own_signal.number));
  while (!record.left) futex_wait(window.open, seen);
  const int64_t waited = now_ns() - since;
  int64_t longest = window.longest_wait_ns.load(std::memory_order_relaxed);
  while (longest < waited &&
         !window.longest_wait_ns.compare_exchange_weak(longest, waited, std::memory_order_relaxed)) {
  }
  if (take_off) take_guard_off(record, shown);
}

void resume(GuardRecord& record, ucontext_t* frame, uint8_t selector) {
  record.selector.store(selector, std::memory_order_relaxed);
  // The kernel looks for the frame at rsp - 8. rt_sigreturn from gate 0 is not trapped.
  asm volatile(
      "movq %0, %%rsp\n\t"
      "jmpq *%1"
      :
      : "r"(frame), "r"(window.gates)
      : "memory");
  __builtin_unreachable();
}

bool back_out(GuardRecord& record, ucontext_t* frame) {
  greg_t* r = frame->uc_mcontext.gregs;
  const auto ip = static_cast<uint64_t>(r[REG_RIP]);
  if (ip - window.gates < kGateBytes) {
    // About to return from a handler of the program: what prepare_signal_return() has put into that frame
    // comes out again.
    auto* below = reinterpret_cast<ucontext_t*>(r[REG_RSP]);
    kernel_stack(below) = record.program_stack;
    kernel_mask(below) |= record.virtual_mask;
    record.program_stack = record.stack_before_return;
    record.virtual_mask = record.virtual_mask_before_return;
    r[REG_RIP] = static_cast<greg_t>(record.return_to - 2);
    r[REG_RAX] = __NR_rt_sigreturn;
    return false;
  }
  if (ip != gate_of(record) && ip != gate_of(record) + 2) return false;
  const bool returned = ip != gate_of(record);
  r[REG_RIP] = static_cast<greg_t>(returned ? record.return_to : record.return_to - 2);
  // As the program's own instruction would have left it.
  r[REG_RCX] = static_cast<greg_t>(record.return_to);
  return returned;
}

bool make_writable(AddrRange range) {
  if (!is_ahead()) return window.copier->make_writable(range);
  open_for_kernel(*record_of(__builtin_frame_address(0)), range);
  return true;
}

bool copy_in(void* to, uint64_t from, size_t bytes) {
  iovec local{to, bytes}, remote{reinterpret_cast<void*>(from), bytes};
  return sys::call(__NR_process_vm_readv, sys::gettid(), &local, 1, &remote, 1, 0L) ==
         static_cast<long>(bytes);
}

bool copy_out(uint64_t to, const void* from, size_t bytes) {
  if (!make_writable({Addr{to}, Addr{to} + bytes})) return false;
  iovec local{const_cast<void*>(from), bytes}, remote{reinterpret_cast<void*>(to), bytes};
  return sys::call(__NR_process_vm_writev, sys::gettid(), &local, 1, &remote, 1, 0L) ==
         static_cast<long>(bytes);
}

void hold(GuardRecord& record, const siginfo_t& info) {
  const size_t i = info.si_signo == SIGSYS;
  record.held[i] = info;
  record.holds[i] = true;
}

void send_held(GuardRecord& record) {
  for (size_t i = 0; i < std::size(record.held); ++i) {
    const int signal = record.held[i].si_signo;
    if (!record.holds[i] || (record.virtual_mask & bit(signal)) != 0) continue;
    record.holds[i] = false;
    // Not before the handler returns.
    const uint64_t set = bit(signal);
    sys::call(__NR_rt_sigprocmask, SIG_BLOCK, &set, 0L, 8L);
    sys::call(__NR_rt_tgsigqueueinfo, this_process.pid, sys::gettid(), signal, &record.held[i]);
  }
}

}  // namespace ckpt::guard
