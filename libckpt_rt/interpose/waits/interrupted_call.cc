// Why a checkpoint is not seen by a call that it interrupts
// =========================================================
// signal(7) names the calls that end with EINTR after any handler, whatever SA_RESTART says. The
// checkpoint's signal is a handler like any other. All such calls of the program are made by one stub
// (interrupted_call.S); what follows is decided from the frame that the kernel pushed, at the end of our
// handler, while all signals are blocked. Everything the second attempt needs is put into that frame and
// into the InterruptibleCall on the thread's stack, and the kernel's return from the handler enters
// the call again: no instruction of ours runs in between outside the stub.
//
// Our frame on top of the stub, by instruction pointer:
//   after, rax == -EINTR       The kernel ended the call because of us. (Had a handler of the program ended
//                              it, the handler's slot would have moved the pointer to after_program.)
//                              Timeout replaced by what remains, pointer to begin.
//   enter, rcx == after        The kernel itself restarts the call (our handler has SA_RESTART).
//   begin .. enter             Not entered yet. Timeout refreshed, pointer to begin.
//   after, rax > 0             Done, or cut short by us: then the rest is made ready, pointer to begin.
//
// Handlers of the program
// -----------------------
// Suppose a signal S of the program comes as well, with a handler. Delivery order: the thread's own
// queue before the process's, lower numbers first; each delivery pushes a frame and blocks its mask, so
// the first delivered is the lowest frame and runs last. Our signal is in the thread's own queue and can
// never be blocked by a mask of the program; our mask is full.
//   1. S delivered before ours. S's frame is on the call and holds -EINTR (or the restart, if S has
//      SA_RESTART). Our frame is on the first instruction of S's slot: none of the cases above, so nothing
//      is changed. Right.
//   2. Ours delivered first, S pending behind our full mask, or sent while we hold the thread. S is
//      delivered when our handler returns, on the frame that we changed, pointer in begin .. enter.
//      Its slot (interpose/signals/handlers.S) sees the pointer in the stub and `resumed` set: the call must
//      end with EINTR, as it would have without us. The slot sets rax = -EINTR, pointer to after_program.
//   3. S comes after our handler returned but before the system call instruction: the same as 2.
//   4. S comes after the call was entered: the kernel's business, as without us.
// There is no instant between these, so no EINTR is lost, and none is invented: `resumed` is set only
// if the call had entered the kernel and was ended by us.
// A call that is restartable (`resumed` is kRestartable because the kernel restarted it for us) is ended
// by S only if S was installed without SA_RESTART.
// Signals without a handler never end these calls by themselves: ignored ones are dropped at delivery,
// stop signals stop the thread in begin .. enter and the call is entered after SIGCONT, fatal ones kill.
// Handlers that have no slot (all in use, or installed by a system call instruction of the program's
// own): the pending signals are looked at here; one that will run such a handler leaves -EINTR. For those
// handlers alone case 3 remains.
//
// Calls that replace the signal mask (ppoll, pselect, epoll_pwait, sigsuspend)
// -----------------------------------------------------------------------------
// They run with mask M and the frame holds the original mask O, which our return restores; the second
// attempt sets M again. In between the mask is O, not M:
//   S in M and not in O   runs in between (case 2 or 3) and must not end the call, which had S blocked:
//                         the slot sees S in M and changes nothing. As if S had come just before the
//                         call. It does so before the new timeout begins to count.
//   S in O and not in M   stays pending until the second attempt, which ends with EINTR at once or
//                         finds a ready descriptor first, as the first would have.
//   S in neither          cases 1 to 4.
//
// Signals that nobody handles
// ---------------------------
// A signal whose action is to be ignored (SIGCHLD, SIGWINCH, SIGURG by default) is dropped when it is sent,
// unless the thread that it is sent to blocks it. Then the kernel queues it and wakes another thread that
// does not block it: that thread's call ends, and there is no handler to run. Our mask blocks everything. So
// while one thread is in our handler this happens to others: those that do not stand yet, and those that go
// on already. Their calls are made again: those with EINTR at `after` although no handler of the program ran
// (`handled`), and those that did a part. This is done at any time, not only near a stop: a thread may rest
// for long between the kernel's entry to our handler and its first instruction, and between the last one and
// the kernel's return. It hides more than we cause: a few calls that end with EINTR after SIGCONT or a
// debugger's stop (signal(7)). Where the program has handlers without a slot, one of them may have run
// unseen: then the call ends.
//
// Cancellation: the wrappers run the stub with asynchronous cancellation (abi.h). libc's
// signal for it is pending behind our mask and acts on the return, on the frame at `begin`.
//
// Restart from an image: the frame in the image is as the kernel made it. The successor thread calls
// fix_interrupted_call on it before it returns through it, hours later on another machine; deadlines are
// in program_time, which continues.
//
// Calls outside the stub
// ----------------------
// Those that the kernel restarts (read on a pipe in libc, futex waits, wait4, ...) go on by themselves,
// but S in case 2 would find the pointer on the system call and run without ending it, though S has no
// SA_RESTART. The state is certain: rcx is the address after the instruction, as the instruction itself
// left it. rcx is dead there, so it carries a tag (xor of the pointer) which S's slot recognises.
#include "libckpt_rt/interpose/waits/interrupted_call.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/time.h>

#include <atomic>

#include "base/clock.h"
#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/signals/handlers.h"
#include "libckpt_rt/interpose/waits/clock.h"
#include "libckpt_rt/core/preload_rules.h"

extern "C" {
extern const char ckpt_call_begin[], ckpt_call_enter[], ckpt_call_after[], ckpt_call_after_program[];
extern const char ckpt_release_begin[], ckpt_release_enter[], ckpt_release_stopped[];
extern const uint64_t ckpt_restart_tag;
constinit std::atomic<uint32_t> ckpt_departures{0};
}

namespace ckpt {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

uint64_t address(const char* label) { return reinterpret_cast<uint64_t>(label); }

// Saturates: kForever for what no clock will reach.
int64_t add_timespec(int64_t start, const timespec& ts) {
  if (ts.tv_sec >= (int64_t{1} << 62) / kSecond) return InterruptibleCall::kForever;
  return start + int64_t{ts.tv_sec} * kSecond + ts.tv_nsec;
}

timespec to_timespec(int64_t ns) { return {ns / kSecond, ns % kSecond}; }

int64_t time_left(int64_t deadline, clockid_t clock) {
  int64_t left = deadline - program_time_in_handler(clock);
  return left > 0 ? left : 0;
}

void set_time_left(InterruptibleCall& call) {
  call.timeout = to_timespec(time_left(call.deadline_ns, call.clock));
  // What the program is told if one of its handlers ends the call before the kernel writes it again.
  call.remaining = call.timeout;
}

// The call was ended by us, and is to be made again with the time that remains.
void renew_timeout(InterruptibleCall& call, bool kernel_has_read_it) {
  long& argument = call.args[call.timeout_arg];
  if (call.phase == Phase::kSocketWait) return set_time_left(call);
  switch (call.timeout_kind) {
    case Timeout::kNone:
    case Timeout::kSocketReceive:
    case Timeout::kSocketSend:
      return;
    case Timeout::kMilliseconds:
      if (static_cast<int>(argument) <= 0 && call.deadline_ns == InterruptibleCall::kUnknown) return;
      if (call.deadline_ns == InterruptibleCall::kUnknown) {
        call.deadline_ns = begin_in_handler(call.begin) + int64_t{static_cast<int>(argument)} * 1'000'000;
      }
      argument = (time_left(call.deadline_ns, call.clock) + 999'999) / 1'000'000;
      return;
    case Timeout::kByPointer:
      if (argument == 0) return;
      if (call.deadline_ns == InterruptibleCall::kUnknown) {
        // Until the kernel has accepted the program's pointer, it is not known to be one.
        if (!kernel_has_read_it) return;
        call.deadline_ns = add_timespec(call.start_ns, *reinterpret_cast<const timespec*>(argument));
      }
      if (call.deadline_ns == InterruptibleCall::kForever) return;
      set_time_left(call);
      argument = reinterpret_cast<long>(&call.timeout);
      return;
    case Timeout::kOwnCopy:
      // The kernel has written into it what remained when we interrupted the call.
      if (call.deadline_ns == InterruptibleCall::kUnknown) {
        call.deadline_ns = add_timespec(program_time_in_handler(call.clock), call.timeout);
      }
      if (call.deadline_ns == InterruptibleCall::kForever) return;
      set_time_left(call);
      return;
    case Timeout::kAbsolute: {
      int64_t shift = hooks::monotonic_shift_ns.load(std::memory_order_relaxed) - call.shift_at_start;
      if (argument == 0 || shift == 0 || !kernel_has_read_it) return;
      const timespec& before = *reinterpret_cast<const timespec*>(argument);
      int64_t moved = add_timespec(shift, before);
      if (moved == InterruptibleCall::kForever) return;
      call.timeout = to_timespec(moved > 0 ? moved : 0);
      call.shift_at_start += shift;
      argument = reinterpret_cast<long>(&call.timeout);
      return;
    }
  }
}

// A socket call with SO_RCVTIMEO or SO_SNDTIMEO would wait its full time again: wait by ppoll for what
// remains, then make the call (continue_after_wait).
void wait_for_socket(InterruptibleCall& call) {
  bool receives = call.timeout_kind == Timeout::kSocketReceive;
  timeval limit{};
  uint32_t size = sizeof(limit);
  long r = sys::call(__NR_getsockopt, call.args[0], SOL_SOCKET, receives ? SO_RCVTIMEO : SO_SNDTIMEO, &limit,
                     &size);
  if (r != 0 || (limit.tv_sec == 0 && limit.tv_usec == 0)) return;
  timespec ts{limit.tv_sec, limit.tv_usec * 1000};
  call.deadline_ns = add_timespec(begin_in_handler(call.begin), ts);
  call.clock = CLOCK_MONOTONIC;
  set_time_left(call);
  call.call_nr = call.nr;
  for (int i = 0; i < 6; ++i) call.call_args[i] = call.args[i];
  call.socket = {static_cast<int>(call.args[0]), static_cast<short>(receives ? POLLIN : POLLOUT), 0};
  call.nr = __NR_ppoll;
  call.args[0] = reinterpret_cast<long>(&call.socket);
  call.args[1] = 1;
  call.args[2] = reinterpret_cast<long>(&call.timeout);
  call.args[3] = 0;
  call.args[4] = 8;
  call.phase = Phase::kSocketWait;
}

uint64_t mask_of(const ucontext_t* frame) {
  return *reinterpret_cast<const uint64_t*>(&frame->uc_sigmask);  // the kernel's frame has 8 bytes of it
}

// Will a handler without a slot run as soon as ours returns, and end the call? restarts: the kernel restarts
// the call after handlers with SA_RESTART.
bool unslotted_handler_waits(const ucontext_t* frame, uint64_t blocked_in_call, bool restarts) {
  uint64_t pending = 0;
  if (sys::call(__NR_rt_sigpending, &pending, 8L) != 0) return false;
  pending &= ~mask_of(frame) & ~blocked_in_call;
  for (int signal = 1; pending != 0 && signal <= 64; ++signal) {
    uint64_t bit = uint64_t{1} << (signal - 1);
    if ((pending & bit) == 0) continue;
    pending &= ~bit;
    if (signal == hooks::checkpoint_signal.load(std::memory_order_relaxed)) continue;
    KernelSigaction action{};
    if (sys::call(__NR_rt_sigaction, long{signal}, 0L, &action, 8L) != 0) continue;
    if (action.handler <= 1 || is_handler_slot(action.handler)) continue;
    if (!restarts || (action.flags & SA_RESTART) == 0) return true;
  }
  return false;
}

// Has the program a handler without a slot? (libc's two do not count: one restarts what it interrupts, the
// other cancels the thread.)
bool has_unslotted_handler() {
  constexpr int kLibcCancel = 32, kLibcSetxid = 33;
  for (int signal = 1; signal <= 64; ++signal) {
    if (signal == kLibcCancel || signal == kLibcSetxid) continue;
    if (signal == hooks::checkpoint_signal.load(std::memory_order_relaxed)) continue;
    KernelSigaction action{};
    if (sys::call(__NR_rt_sigaction, long{signal}, 0L, &action, 8L) != 0) continue;
    if (action.handler > 1 && !is_handler_slot(action.handler)) return true;
  }
  return false;
}

void prepare_again(InterruptibleCall& call) {
  call.resumed = Resumed::kNeverRestarts;
  if (call.phase == Phase::kCall &&
      (call.timeout_kind == Timeout::kSocketReceive || call.timeout_kind == Timeout::kSocketSend)) {
    wait_for_socket(call);
  }
  renew_timeout(call, true);
}

void end_by_program(InterruptibleCall& call, greg_t* r) {
  call.resumed = Resumed::kNo;
  call.handled = true;
  r[REG_RAX] = -EINTR;
  r[REG_RIP] = static_cast<greg_t>(address(ckpt_call_after_program));
}

// Calls that a handler without SA_RESTART ends with EINTR while one with it restarts them; not those
// that the kernel restarts after any handler (clone, FUTEX_LOCK_PI).
bool ends_without_sa_restart(uint64_t nr, uint64_t second_argument) {
  switch (nr) {
    case __NR_read:
    case __NR_readv:
    case __NR_preadv2:
    case __NR_write:
    case __NR_writev:
    case __NR_pwritev2:
    case __NR_ioctl:
    case __NR_open:
    case __NR_openat:
    case __NR_wait4:
    case __NR_waitid:
    case __NR_accept:
    case __NR_accept4:
    case __NR_connect:
    case __NR_recvfrom:
    case __NR_recvmsg:
    case __NR_recvmmsg:
    case __NR_sendto:
    case __NR_sendmsg:
    case __NR_sendmmsg:
    case __NR_fcntl:
    case __NR_flock:
    case __NR_mq_timedsend:
    case __NR_mq_timedreceive:
    case __NR_getrandom:
    case __NR_sendfile:
    case __NR_splice:
    case __NR_tee:
    case __NR_vmsplice:
      return true;
    case __NR_futex: {
      uint64_t operation = second_argument & FUTEX_CMD_MASK;
      return operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET;
    }
    default:
      return false;
  }
}

constexpr uint16_t kSyscallInstruction = 0x050f;

void fix_outside_stub(ucontext_t* frame) {
  greg_t* r = frame->uc_mcontext.gregs;
  uint64_t ip = static_cast<uint64_t>(r[REG_RIP]);
  if (static_cast<uint64_t>(r[REG_RCX]) != ip + 2) return;
  if (*reinterpret_cast<const uint16_t*>(ip) != kSyscallInstruction) return;
  if (!ends_without_sa_restart(static_cast<uint64_t>(r[REG_RAX]), static_cast<uint64_t>(r[REG_RSI]))) return;
  if (unslotted_handler_waits(frame, 0, true)) {
    r[REG_RAX] = -EINTR;
    r[REG_RIP] = static_cast<greg_t>(ip) + 2;
  } else {
    r[REG_RCX] = static_cast<greg_t>(ip ^ ckpt_restart_tag);
  }
}

}  // namespace

int64_t program_time_in_handler(clockid_t clock) {
  int64_t now = now_ns(clock);
  return clock == CLOCK_MONOTONIC ? now - hooks::monotonic_shift_ns.load(std::memory_order_relaxed) : now;
}

void fix_interrupted_call(ucontext_t* frame) {
  // relaxed: this thread's own stub reads it. Other threads see it change as well, and only tell once more.
  ckpt_departures.fetch_add(1, std::memory_order_relaxed);
  greg_t* r = frame->uc_mcontext.gregs;
  const uint64_t ip = static_cast<uint64_t>(r[REG_RIP]);
  if (ip >= address(ckpt_call_begin) && ip <= address(ckpt_call_after)) {
    InterruptibleCall& call = *reinterpret_cast<InterruptibleCall*>(r[REG_RBX]);
    // The checkpoint signal may have got another number since the call was prepared.
    if (call.has_mask) call.mask &= ~checkpoint_bit();
    if (call.nr == __NR_rt_sigtimedwait) *reinterpret_cast<uint64_t*>(call.args[0]) &= ~checkpoint_bit();
    const uint64_t blocked_in_call = call.has_mask ? call.mask : 0;
    if (ip == address(ckpt_call_after)) {
      const long result = r[REG_RAX];
      if (result == -EINTR) {
        if (unslotted_handler_waits(frame, blocked_in_call, false)) {
          call.handled = true;
          r[REG_RIP] = static_cast<greg_t>(address(ckpt_call_after_program));
          return;
        }
        prepare_again(call);
      } else if (result > 0 && progress::is_part(call, result)) {
        progress::take_part(call, result);
        call.resumed = Resumed::kNeverRestarts;
      } else {
        return;
      }
    } else {
      const bool entered =
          ip == address(ckpt_call_enter) && static_cast<uint64_t>(r[REG_RCX]) == address(ckpt_call_after);
      // The call was in the kernel and will enter it again: a handler that runs first ends it, as it would
      // have without us.
      if ((entered || call.resumed != Resumed::kNo) &&
          unslotted_handler_waits(frame, blocked_in_call, call.resumed != Resumed::kNeverRestarts)) {
        end_by_program(call, r);
        return;
      }
      if (entered && call.resumed == Resumed::kNo) call.resumed = Resumed::kRestartable;
      renew_timeout(call, entered);
    }
    r[REG_RIP] = static_cast<greg_t>(address(ckpt_call_begin));
  } else if (ip >= address(ckpt_release_begin) && ip <= address(ckpt_release_enter)) {
    r[REG_RIP] = static_cast<greg_t>(address(ckpt_release_stopped));
  } else {
    fix_outside_stub(frame);
  }
}

extern "C" void ckpt_program_handler_begins(int signal, ucontext_t* frame, unsigned slot) {
  greg_t* r = frame->uc_mcontext.gregs;
  const uint64_t ip = static_cast<uint64_t>(r[REG_RIP]);
  InterruptibleCall& call = *reinterpret_cast<InterruptibleCall*>(r[REG_RBX]);  // if in the stub
  if (ip == address(ckpt_call_after)) {
    call.handled = true;
    r[REG_RIP] = static_cast<greg_t>(address(ckpt_call_after_program));
  } else if (ip >= address(ckpt_call_begin) && ip <= address(ckpt_call_enter)) {
    if (call.resumed == Resumed::kNo) return;
    if (call.has_mask && ((call.mask >> (signal - 1)) & 1) != 0) return;
    if (call.resumed == Resumed::kRestartable && slot_restarts(slot)) return;
    end_by_program(call, r);
  } else if (!slot_restarts(slot)) {  // the tag
    r[REG_RAX] = -EINTR;
    r[REG_RIP] = static_cast<greg_t>(ip) + 2;
  }
}

bool InterruptibleCall::goes_on_by_itself(long result) {
  if (handled) return false;
  if (result == -EINTR) {
    if (has_unslotted_handler()) return false;
    prepare_again(*this);
    return true;
  }
  // recvmmsg leaves the interruption as an error in the socket, which cannot be told from a real error. To
  // find out whether a short read is a part takes a system call. That call is not made for reads of up to 64
  // KiB, nor before the first stop: there a part is very rare.
  constexpr long kPipeBytes = 64 << 10;
  if (progress == Progress::kMemoryDevice &&
      (args[2] <= kPipeBytes || ckpt_departures.load(std::memory_order_relaxed) == 0)) {
    return false;
  }
  if (nr == __NR_recvmmsg || !progress::is_part(*this, result) || has_unslotted_handler()) return false;
  progress::take_part(*this, result);
  resumed = Resumed::kNeverRestarts;
  return true;
}

// A checkpoint has interrupted the call. Does what the handler could not prepare: the call itself after the
// wait for its socket, and the pieces of a vector that did not fit the scratch.
long InterruptibleCall::run_rest(long result) {
  for (;;) {
    if (phase == Phase::kSocketWait) {
      result = continue_after_wait(result);
    } else if (phase == Phase::kMessageRest) {
      result = continue_after_message(result);
    } else if (result > 0 && vector_done > 0 && progress != Progress::kMessages) {
      done += result;
      vector_done += static_cast<size_t>(result);
      if (!progress::next_pieces(*this)) return done;
      result = attempt();
    } else {
      break;
    }
  }
  if (done == 0) return result;
  return result > 0 ? done + result : done;
}

// sendmsg has sent more of a message that sendmmsg had sent in part, or has failed. The message is counted in
// `done` already.
long InterruptibleCall::continue_after_message(long result) {
  if (result > 0) {
    vector_done += static_cast<size_t>(result);
    if (progress::next_pieces(*this)) return attempt();
  }
  phase = Phase::kCall;
  nr = call_nr;
  for (int i = 0; i < 6; ++i) args[i] = call_args[i];
  reinterpret_cast<mmsghdr*>(args[1])[-1].msg_len = static_cast<unsigned>(vector_done);
  if (result <= 0 || args[2] == 0) return 0;
  return attempt();
}

long InterruptibleCall::continue_after_wait(long result) {
  phase = Phase::kCall;
  nr = call_nr;
  for (int i = 0; i < 6; ++i) args[i] = call_args[i];
  if (result > 0) return attempt();
  if (result < 0) return result;
  if (nr != __NR_connect) return -EAGAIN;
  return reinterpret_cast<const sockaddr*>(args[1])->sa_family == AF_UNIX ? -EAGAIN : -EINPROGRESS;
}

}  // namespace ckpt
