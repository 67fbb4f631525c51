// What the guard keeps of a thread, and of the window that is open: shared by the files of guard/ and by no
// others.
//
// A thread's record begins a block of 64 KiB, whose rest is the alternate stack on which all handlers run
// while the guard is open: so the record is found from the address of any frame there, and no TLS is needed.
//
// Owner:     guard.cc. Callers: threads of the program in handlers of the guard, each on its own record.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <atomic>

#include "base/locks/futex.h"
#include "base/units.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/guard/guard.h"

namespace ckpt {
class Arming;
class GuardedMemory;
}  // namespace ckpt

namespace ckpt::guard {

inline constexpr uint64_t kBlockBytes = 64 << 10;
// Threads that write go one after the other through the guard's turn. With 2,000 a checkpoint takes 0.5 s on
// two processors; with 4,000 one in ten is given up, because a thread waits for its turn for longer than
// CKPT_STOP_TIMEOUT (docs/limits.md).
inline constexpr uint32_t kMostThreads = 2048;
inline constexpr uint64_t kGateBytes = 16;
inline constexpr uint8_t kLetThrough = 0, kTrap = 1;  // SYSCALL_DISPATCH_FILTER_ALLOW, _BLOCK

struct [[gnu::may_alias]] KernelStack {  // the kernel's stack_t
  uint64_t start;
  int32_t flags, pad;
  uint64_t bytes;
};

struct GuardRecord {
  // Read by the kernel at each system call of the thread outside of the gates.
  std::atomic<uint8_t> selector{kLetThrough};
  bool dispatched = false;     // PR_SET_SYSCALL_USER_DISPATCH is on for the thread
  bool left = false;           // a stop has closed the guard while the thread waited in a handler
  bool call_has_mask = false;  // the call in the gate replaces the signal mask
  uint32_t index = 0;
  uint64_t return_to = 0;  // where the gate jumps after the call: behind the program's own instruction
  uint64_t call_mask = 0;
  uint64_t virtual_mask = 0;  // those of `forced` that the program believes to be blocked
  // Ahead of the checkpoint's stop: what the thread's present or last call may write to. When the array is
  // full, the last range grows to cover the rest. The thread adds with the turn, and empties the list without
  // it.
  static constexpr uint32_t kMostBusy = 6;
  AddrRange busy[kMostBusy] = {};
  std::atomic<uint32_t> busy_count{0};
  uint64_t found_protections = 0;  // GuardedMemory::protections() when found_copied was set
  ucontext_t* shown = nullptr;     // while it waits in a handler of ours: where the program stands
  bool enlisted = false;
  bool counted = false;       // in Window::enlisted: once, however often it stands
  uint64_t found_copied = 0;  // a page that a fault found writable already: if it faults again it is not ours
  KernelStack program_stack{};  // the alternate stack as the program knows it
  // Both as before the return from a handler that waits in gate 0.
  KernelStack stack_before_return{};
  uint64_t virtual_mask_before_return = 0;
  // Signals of `forced` that somebody sent, not the kernel, while the thread blocks them or is in a handler
  // of ours.
  bool holds[2] = {};  // that of the faults, SIGSYS
  siginfo_t held[2] = {};
};

struct Window {
  FutexWord open{0};  // odd: open. Changes only while all threads stand.
  Copier* copier = nullptr;
  // Ahead of the checkpoint's stop, else nullptr: memory is being protected. Used with the turn of `guarded`.
  Arming* arming = nullptr;
  GuardedMemory* guarded = nullptr;
  uint32_t generation = 0;  // of the process: another one after a restart
  Faults faults{};
  uint64_t forced =
      0;  // signals that must not be blocked while the guard is open: SIGSYS and that of the faults
  uint64_t gates = 0;  // code: gate 0 is rt_sigreturn, gate i makes a call for the thread with record i
  uint64_t gates_end = 0;
  uint64_t blocks = 0;  // record i at blocks + i * kBlockBytes
  AddrRange memory{};
  std::atomic<uint32_t> next_record{0};
  FutexWord enlisted{0};
  FutexLock<LockRank::kActions> actions_lock;  // leaf; held by handlers with signals blocked
  KernelSigaction actions[65] = {};            // as the program knows them
  std::atomic<uint64_t> calls{0}, waited{0}, signals{0};
  std::atomic<int64_t> longest_wait_ns{0};
};
extern Window window;

inline bool is_open() { return (window.open.load(std::memory_order_acquire) & 1) != 0; }
inline GuardRecord* record_of(const void* on_stack) {
  const uint64_t offset = Addr::of(on_stack).value - window.blocks;
  if (window.blocks == 0 || offset >= kMostThreads * kBlockBytes) return nullptr;
  return reinterpret_cast<GuardRecord*>(window.blocks + (offset & ~(kBlockBytes - 1)));
}
inline KernelStack stack_of(const GuardRecord& record) {
  return {Addr::of(&record).value + kPageSize, 0, 0, kBlockBytes - kPageSize};
}
inline uint64_t gate_of(const GuardRecord& record) { return window.gates + (record.index + 1) * kGateBytes; }

inline KernelStack& kernel_stack(ucontext_t* frame) {
  return *reinterpret_cast<KernelStack*>(&frame->uc_stack);
}
using KernelMask [[gnu::may_alias]] = uint64_t;
inline KernelMask& kernel_mask(ucontext_t* frame) {
  return *reinterpret_cast<KernelMask*>(&frame->uc_sigmask);
}

// The end of every handler while the guard is open.
[[noreturn]] void resume(GuardRecord& record, ucontext_t* frame, uint8_t selector);
// A thread interrupted in its gate appears as if it stood at its own instruction. True: the call had
// returned.
bool back_out(GuardRecord& record, ucontext_t* frame);
// Makes memory writable for the kernel. False: it cannot be, before the guard is closed.
bool make_writable(AddrRange range);
// Returns when the guard is closed, with the thread no longer under guard; its frame is ready for return.
// shown: where the program stands meanwhile. take_off: the thread was under guard already.
void wait_until_closed(GuardRecord& record, ucontext_t* shown, bool take_off = true);
// The alternate stack in this frame is the program's again, for the kernel to take. Of a thread that never
// set one the kernel reports flags 0, which it does not take back: ours would stay.
void show_program_stack(const GuardRecord& record, ucontext_t* frame);
// The frame as it would be without the guard.
void take_guard_off(GuardRecord& record, ucontext_t* frame);
void hold(GuardRecord& record, const siginfo_t& info);
// Sends held signals that the program does not block: they come when the handler returns.
void send_held(GuardRecord& record);

// guard.cc: a thread that has stood goes back under guard.
[[noreturn]] void enlist(void* frame);
void leave_dispatch(GuardRecord& record);
uint64_t bit(int signal);
void unblock(uint64_t signals);
void block_all();

// Ahead of the checkpoint's stop (guard/ahead.cc).
inline bool is_ahead() { return window.arming != nullptr; }
void open_for_kernel(GuardRecord& record, AddrRange range);
void open_for_change(GuardRecord& record, AddrRange range);
// A store faulted at the page: may it be made again? False: the fault is not ours.
bool make_writable_ahead(GuardRecord& record, Addr page);
// The words that the kernel writes to when the thread ends.
void open_for_exit();

// Reads the program's memory, false when the kernel could not either.
bool copy_in(void* to, uint64_t from, size_t bytes);
bool copy_out(uint64_t to, const void* from, size_t bytes);

// guard/signals.cc: the frame as the kernel would have pushed it without us, on the program's alternate stack
// or where it stands.
struct MovedFrame {
  ucontext_t* context;
  siginfo_t* info;
};
MovedFrame move_frame(const GuardRecord& record, const ucontext_t* frame, const siginfo_t& info,
                      uint64_t restorer, bool wants_alternate);

// Handlers. guard/dispatch.cc:
void on_system_call(int, siginfo_t* info, void* frame);
// guard/signals.cc:
void on_fault(int signal, siginfo_t* info, void* frame);
void on_program_signal(int signal, siginfo_t* info, void* frame);
void install(int signal, const KernelSigaction& wanted);
bool on_stack(const KernelStack& stack, uint64_t sp);
long set_program_stack(GuardRecord& record, const KernelStack& wanted, uint64_t sp);
// System calls about signals, made here in place of the kernel. The result, or kWait.
inline constexpr long kWait = -4096;
long change_mask(GuardRecord& record, ucontext_t* frame, const long* args);
long change_action(const long* args);
long change_stack(GuardRecord& record, ucontext_t* frame, const long* args);
void prepare_signal_return(GuardRecord& record, ucontext_t* frame);

}  // namespace ckpt::guard
