// System calls that a handler interrupts for good (EINTR, or a part of the work), made so that the program
// does not see an interruption by a checkpoint. Why no EINTR is lost or invented: top of interrupted_call.cc.
//
// Owner:     libckpt_rt/interpose. An InterruptibleCall is one system call under way, on the stack of the
//            thread that makes it (no TLS: threads made by clone(2) may share their parent's).
// Callers:   run(): a thread of the program. fix_interrupted_call(): the handlers of the checkpoint signal
//            and of the guard, before they return, and the thread that goes on at a restart or in place,
//            before it returns through the saved frame. Calling it earlier as well does no harm.
// Never:     touches errno, allocates, takes a lock.
#pragma once

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/program_memory.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/interpose/waits/clock.h"

namespace ckpt {

// How the call's timeout is passed, so that a second attempt gets what remains of it.
enum class Timeout : uint8_t {
  kNone,
  kMilliseconds,   // args[timeout_arg] is an int; <= 0 means none or at once
  kByPointer,      // args[timeout_arg] points to the program's timespec, relative
  kOwnCopy,        // args[timeout_arg] points to InterruptibleCall::timeout, relative; the kernel updates it
  kAbsolute,       // args[timeout_arg] points to the program's timespec, absolute on `clock`
  kSocketReceive,  // SO_RCVTIMEO of descriptor args[0]
  kSocketSend,     // SO_SNDTIMEO of descriptor args[0]
};

// What a call that was cut short has done, so that the rest of it can be done.
enum class Progress : uint8_t {
  kNone,
  kBytes,         // write, send, recv with MSG_WAITALL: args[1] buffer, args[2] length
  kVector,        // writev: args[1] iovec, args[2] count
  kMessage,       // sendmsg, recvmsg with MSG_WAITALL: args[1] msghdr
  kMessages,      // sendmmsg, recvmmsg: args[1] mmsghdr, args[2] count
  kCount,         // sendfile: args[3] length, the kernel moved the offsets
  kMemoryDevice,  // read: args[1], args[2], only for /dev/zero, /dev/urandom and their kin
  kRandom,        // getrandom: args[0] buffer, args[1] length
};

enum class Resumed : uint8_t {
  kNo = 0,
  kRestartable = 1,  // a handler with SA_RESTART lets this call go on
  kNeverRestarts = 2,
};

enum class Phase : uint8_t {
  kCall = 0,
  kSocketWait = 1,   // the stub waits by ppoll() in place of the call; continue_after_wait() makes the call
  kMessageRest = 2,  // the stub sends the rest of a message that sendmmsg sent in part
};

// Pieces of a program's iovec array, moved on: the array itself belongs to the program.
struct VectorScratch {
  static constexpr size_t kPieces = 16;
  iovec pieces[kPieces];
  const iovec* all = nullptr;
  size_t all_count = 0;
  msghdr message;
};

struct KernelMaskArgument {  // last argument of pselect6 and io_pgetevents
  const uint64_t* mask;
  size_t size;
};

struct InterruptibleCall {
  // Loaded by the stub; the offsets are known to interrupted_call.S.
  long nr;
  long args[6];

  // Beyond these, only what a call uses is given a value: setting all of it would cost as much as a
  // tenth of a short system call.
  Resumed resumed = Resumed::kNo;
  Phase phase = Phase::kCall;
  Timeout timeout_kind = Timeout::kNone;
  Progress progress = Progress::kNone;
  int8_t timeout_arg = 0;
  bool has_mask = false;  // `mask` replaces the thread's signal mask during the call
  bool handled = false;   // a handler of the program ran: the call ends with EINTR, or with its part
  clockid_t clock = CLOCK_MONOTONIC;
  int64_t deadline_ns = kUnknown;
  long done = 0;           // bytes or messages of earlier parts
  size_t vector_done = 0;  // kVector, kMessage, kMessageRest: bytes of scratch->all that are moved

  int64_t start_ns;  // kByPointer: when the call began; see program_time
  BeginMark begin;   // kMilliseconds, kSocket*: the same
  uint64_t mask;
  int64_t shift_at_start;  // kAbsolute
  VectorScratch* scratch;  // kVector, kMessage, kMessages when sending
  timespec timeout;
  timespec remaining;  // nanosleep: where the kernel writes it
  KernelMaskArgument mask_argument;
  pollfd socket;
  long call_nr;  // kSocketWait, kMessageRest: the call itself
  long call_args[6];

  static constexpr int64_t kUnknown = INT64_MIN;
  static constexpr int64_t kForever = INT64_MAX;

  InterruptibleCall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0)
      : nr(number), args{a, b, c, d, e, f} {}

  // Result as the kernel's: -errno on failure. Parts of a partial call are added up.
  long run() {
    long result = attempt();
    if (__builtin_expect(resumed != Resumed::kNo || done != 0, 0)) return run_rest(result);
    return result;
  }

  // The functions with_…() each say what one argument means; inline, because every call begins with them.
  void with_milliseconds(int arg) {
    timeout_arg = static_cast<int8_t>(arg);
    timeout_kind = Timeout::kMilliseconds;
    if (static_cast<int>(args[arg]) > 0) begin = begin_mark();
  }
  void with_timeout_pointer(int arg, clockid_t timeout_clock = CLOCK_MONOTONIC) {
    timeout_arg = static_cast<int8_t>(arg);
    timeout_kind = Timeout::kByPointer;
    clock = timeout_clock;
    if (args[arg] != 0) start_ns = program_time(timeout_clock);
  }
  void with_own_timeout(int arg, const timespec& relative) {
    timeout_kind = Timeout::kOwnCopy;
    timeout = relative;
    args[arg] = reinterpret_cast<long>(&timeout);
  }
  void with_absolute_timeout(int arg, clockid_t timeout_clock) {
    if (timeout_clock != CLOCK_MONOTONIC) return;
    timeout_arg = static_cast<int8_t>(arg);
    timeout_kind = Timeout::kAbsolute;
    shift_at_start = hooks::monotonic_shift_ns.load(std::memory_order_relaxed);
  }
  void with_socket_timeout(Timeout direction) {
    timeout_kind = direction;
    begin = begin_mark();
  }
  // Removes the checkpoint signal from the mask. A mask that cannot be read is for the kernel to refuse.
  void with_mask(int arg, const void* kernel_mask) {
    args[arg] = reinterpret_cast<long>(kernel_mask);
    if (kernel_mask == nullptr || !program_memory::read(mask, kernel_mask)) return;
    has_mask = true;
    mask &= ~checkpoint_bit();
    args[arg] = reinterpret_cast<long>(&mask);
  }
  void with_packed_mask(int arg, const void* kernel_mask) {
    if (kernel_mask == nullptr) return;
    with_mask(arg, kernel_mask);
    mask_argument = {reinterpret_cast<const uint64_t*>(args[arg]), 8};
    args[arg] = reinterpret_cast<long>(&mask_argument);
  }

 private:
  // The call, again and again while signals that nobody handles end it.
  long attempt() {
    long result = enter();
    while (__builtin_expect(may_be_cut_short(result), 0) && goes_on_by_itself(result)) result = enter();
    return result;
  }
  bool may_be_cut_short(long result) const {
    if (result <= 0) return result == -EINTR;
    const bool counts_bytes = progress == Progress::kBytes || progress == Progress::kMemoryDevice;
    return counts_bytes ? result < args[2] : progress != Progress::kNone;
  }
  bool goes_on_by_itself(long result);
  // By the stub.
  long enter() {
    long result;
    asm volatile(
        "leaq 1f(%%rip), %%r12\n\t"
        "jmp ckpt_interruptible_syscall\n"
        "1:"
        : "=a"(result)
        : "b"(this)
        : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "cc", "memory");
    return result;
  }
  long run_rest(long result);
  long continue_after_wait(long result);
  long continue_after_message(long result);
};

// Prepares an interrupted call to go on. `frame` is the third argument of the handler.
void fix_interrupted_call(ucontext_t* frame);

// A system call that gives memory back. While a copy is under way, tell() first names the ranges to
// hooks::before_release. If a checkpoint stops this thread between that and the kernel, both are done again.
template <typename Tell>
long run_releasing_call(Tell&& tell, long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                        long f = 0);

// A handler of the program is about to run in this thread (interpose/signals/handlers.S). If the call that it
// interrupts would have ended with EINTR without us, makes it do so, although we had made it start again.
extern "C" void ckpt_program_handler_begins(int signal, ucontext_t* frame, unsigned slot);

namespace progress {  // waits/progress.cc
// The call returned `result` > 0, and a signal may have cut it short. True: without the signal it would have
// gone on, so the rest is to be done.
bool is_part(InterruptibleCall& call, long result);
// After is_part(): changes `call` so that it does the rest when it is made again.
void take_part(InterruptibleCall& call, long result);
// Prepares the next pieces of scratch->all, from vector_done on. False: nothing left.
bool next_pieces(InterruptibleCall& call);
}  // namespace progress

// Time on `clock` as the program lives it: CLOCK_MONOTONIC does not jump at a restart.
int64_t program_time_in_handler(clockid_t clock);

extern "C" {
// Grows whenever a thread leaves a handler of ours (fix_interrupted_call); read by the stub.
extern std::atomic<uint32_t> ckpt_departures;
}

inline constexpr long kStoppedBefore = -4095;  // no error of the kernel

// One system call, entered only if no checkpoint has stopped this thread since it read `departures` from
// ckpt_departures; else kStoppedBefore.
inline long call_unless_stopped(uint32_t departures, long nr, long a = 0, long b = 0, long c = 0, long d = 0,
                                long e = 0, long f = 0) {
  long r = nr;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile(
      "leaq 1f(%%rip), %%r12\n\t"
      "jmp ckpt_releasing_syscall\n"
      "1:"
      : "+a"(r)
      : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9), "b"(departures)
      : "rcx", "r11", "r12", "cc", "memory");
  return r;
}

template <typename Tell>
long run_releasing_call(Tell&& tell, long nr, long a, long b, long c, long d, long e, long f) {
  for (;;) {
    // relaxed: a stop of this thread in between is a change by this very thread, in its handler.
    const uint32_t departures = ckpt_departures.load(std::memory_order_relaxed);
    if (hooks::copying()) tell();
    long r = call_unless_stopped(departures, nr, a, b, c, d, e, f);
    if (r != kStoppedBefore) return r;
  }
}

}  // namespace ckpt
