// What the interposed calls ask of the floors above them: of a stop, of protected memory and of the agent.
// Small on purpose: an interposed call knows nothing of a checkpoint but this. (What it notes for the next
// one, as the rings, timers and locks that a program has, it notes in libckpt_rt/capture, which lies below.)
//
// Owner:     declared by interposition, defined by the library's start-up (tests define their own).
// Callers:   threads of the program inside an interposed call, at any moment, also before the library's
//            constructor ran and inside a signal handler of the program.
// Never:     allocates, takes a lock of libc, touches errno or TLS.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckpt::hooks {

// Number of the signal that stops threads. Constant-initialised to kDefaultCheckpointSignal; set
// while one thread runs, or while all threads of the program stand (own_signal.h).
extern std::atomic<int> checkpoint_signal;

// The program is about to use that signal for itself. When it returns, ours is another one, if that could be.
// Not called in a child of vfork. May take as long as a checkpoint that is under way.
void yield_signal();
// The program's handler of a signal that was ours before is about to run. True: an asker had looked just
// before the move, and its request was taken; the program is to see nothing of it.
bool took_late_request(void* information, void* context);
// Our own handler of the checkpoint signal, which stays at a number that was given up until the program puts
// one there. 0: none yet.
extern std::atomic<uintptr_t> own_handler;

// Not 0 from a stop until the last segment of that checkpoint is copied. Written while all threads
// stand still (set) or at any time (cleared).
extern std::atomic<uint32_t> copy_under_way;

// CLOCK_MONOTONIC of this machine minus the program's own: the sum over all restarts that could not
// use a time namespace, in ns. Changes only at restart, before threads go on.
extern std::atomic<int64_t> monotonic_shift_ns;

// The memory [start, start + length) is about to be given back or replaced: returns when all segments
// of it that the checkpoint under way still needs are copied. Called only while copy_under_way.
// length may reach beyond the end of memory (SIZE_MAX from 0: everything).
void before_release(uintptr_t start, size_t length);

// Not 0 while a checkpoint has registered memory with the kernel, which may have cut mappings of the program
// in two. Another number whenever something is registered.
extern std::atomic<uint32_t> memory_registered;
// Undoes that for [start, start + length). May be called at any time.
void forget(uintptr_t start, size_t length);

// A mutex, or a futex, that the kernel itself may write to (futex_words.h).
void note_mutex(const void* mutex);
void note_futex(const void* word);
// The word that the kernel clears when the calling thread exits, which it is about to do.
void note_exit(const void* word);

// The program has had children: they share its shared memory. before_fork(): it is about to have one.
extern std::atomic<bool> has_forked;
void before_fork();
// In the parent, whether it has a child now or not.
void after_fork();
// The program is about to have a child that executes another program at once (vfork, posix_spawn).
extern std::atomic<bool> has_spawned;
void before_spawn();
// The process is about to end.
void before_end();

// A stream socket is about to be connected. True: a handler of the program ran meanwhile that ends such a
// call.
bool before_connect(int fd);

// The calling thread is about to become that user (or UINT32_MAX: stays who it is).
void before_user(uint32_t user);

// The calling thread is about to forbid itself nearly all system calls: none of our signals may reach it any
// more, and no checkpoint is taken. end_strict only when that failed.
void begin_strict();
void end_strict();
// It is about to set a filter that ends the program where a handler of ours returns, or our threads work: our
// signal is ignored from then on, and no checkpoint is taken. end_deadly_filter only when that failed.
void begin_deadly_filter();
void end_deadly_filter();

// The calling thread is about to wait in the kernel for a child with memory of its own (CLONE_VFORK).
void note_wait_for_child();
// The program gets a keyring of its own, or has left namespaces (CLONE_NEW*): a restart cannot give them
// back.
void note_keyring();
// The program puts a key into the keyring of its session, which a restart elsewhere does not have.
void note_session_key();
// The program has forbidden itself access to files (landlock).
void note_landlock();
// The calling thread has registered an rseq area of its own, or (address 0) has none any more.
struct RseqArea {
  uintptr_t address = 0;  // 0: none
  uint32_t length = 0, signature = 0;
};
// Of the calling thread; what was noted before.
RseqArea note_rseq(const RseqArea& area);
// The program asks to be told when a message comes into a queue. The notice ends when any descriptor of the
// queue is closed in the process, also in a table of the agent.
void note_queue_notice();
void note_namespaces(int left);
// A thread waits for its own children alone (__WNOTHREAD).
void note_wait_of_thread();

// Between the two no thread of ours exists.
void begin_alone();
void end_alone();

// Around exec: the thread has our signal blocked and is about to become another program, where no
// signal of ours may reach it. end_exec only when exec failed.
void begin_exec();
void end_exec();

// Runs in the child of fork() and _Fork(), in its only thread.
void in_child_after_fork();

// relaxed: set while the world is stopped, and every thread leaves that stop through a futex or a
// kernel entry that orders it after the store; a stale "yes" only costs a call.
inline bool copying() { return copy_under_way.load(std::memory_order_relaxed) != 0; }

}  // namespace ckpt::hooks
