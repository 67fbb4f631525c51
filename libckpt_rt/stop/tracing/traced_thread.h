// A thread of this process that another process of the job traces (ptrace(2)): what it does in our handler
// so that its tracer finds it afterwards as it was.
//
// Owner:     the thread. Callers: the handler of the checkpoint signal, and the same thread at a restart.
// Never:     libc. Nothing of it happens in a thread that was told nothing by its tracer's library.
//
// The tracer's library (service.h) sees each of our signals before the thread does, and writes its word into
// si_errno, which no signal of ours uses. With kAgain the thread must not run one instruction of the program
// before the tracer has it again. So at its end the handler sends its own thread a marker, at which the
// kernel stops it for its tracer. That one lets it go on by PTRACE_SYSCALL, and has it behind
// rt_sigreturn(2), with the registers and the signal mask of the program, ahead of its next instruction and
// of any signal. Where the tracer is gone, at any moment of this, the kernel drops the marker, and the
// handler returns.
#pragma once

#include <signal.h>

#include <cstdint>

namespace ckpt::traced {

// In si_errno: 0x54, the signal of a stop of which wait(2) has not told yet (0: none), the flags.
inline constexpr int kWord = 0x54 << 24, kWordMask = 0x7f << 24;
inline constexpr int kAgain = 1;
inline constexpr int kServed =
    2;  // by a tracer that takes part in the checkpoint: after a restart it attaches
inline constexpr int kTakes = 4;  // the tracer's own: the thread is to take what waits for its process
constexpr int word_of(int untold, int flags) { return kWord | untold << 8 | flags; }
constexpr int untold_of(int word) { return word >> 8 & 0x7f; }
inline int word_in(const siginfo_t& info) { return (info.si_errno & kWordMask) == kWord ? info.si_errno : 0; }
// A marker's default is that it is ignored, but a traced thread stops at it. The first that the program does
// not handle is taken. SIGTRAP: it handles them all.
inline constexpr int kMarkers[] = {SIGURG, SIGWINCH, SIGCHLD};
constexpr bool may_be_marker(int signal) {
  return signal == SIGURG || signal == SIGWINCH || signal == SIGCHLD || signal == SIGTRAP;
}
// Nobody but the kernel and the thread itself can send such a code, and the kernel has none of that number.
inline constexpr int kMarkerCode = 0x54;
inline bool is_marker(const siginfo_t& info) { return word_in(info) != 0 && info.si_code == kMarkerCode; }

// In the handler of a signal with kTakes: the next of our signals that waits for the thread's process. False:
// none, or one that stops this thread, which waits for it still.
bool take_request(siginfo_t& info);
// As the last thing in the handler.
void leave_handler(int word);
// The same at a restart, where the tracer attaches first; it is waited for, for kPatienceNs. tracer: its
// thread id.
inline constexpr int64_t kPatienceNs = 30'000'000'000;
// Its library says by our signal, in si_errno, that it has attached, or cannot. Others of our signals are
// kept until then.
inline constexpr int kAttached = 0x55 << 24, kCannot = kAttached + 1;
void come_back(int word, int tracer);
// Who traces the calling thread; 0: nobody; -1: /proc does not say (no descriptor is left).
int own_tracer();
// In the handler of a signal with a word, around what it does: it may start the agent.
void note_tracer();
void forget_tracer();
// At a restart, and in a child: no thread of this process is in that handler, but those that come back from
// it (come_back), which do not forget.
void reset();
// Some tracer's library has told this process of itself, and a thread is traced still.
bool has_tracer();
// It has, and traces that thread.
bool has_tracer(int tid);

}  // namespace ckpt::traced
