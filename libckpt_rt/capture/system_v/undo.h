// What the kernel will do to semaphores when this process ends (SEM_UNDO). It keeps that to itself, so it is
// reckoned here, and told to the kernel anew in a restarted process.
//
// Owner:     libckpt_rt; in the library's data, so that an image has it. A child of fork has no such debts:
//            the list says whose it is.
// Callers:   up to semctl_that_forgives: threads of the program, in interposed calls. The others: the agent
//            with the threads standing; the leader at restart.
// Never:     allocates, touches errno, takes a lock of libc.
//
// A call and its entry in the list are one to a checkpoint: both are made with the checkpoint's signal
// blocked, and so never wait in the kernel. How an operation waits: interpose/system_v/system_v.cc.
#pragma once

#include <sys/sem.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt::system_v {

struct Debt {
  int32_t id = -1;  // of the set
  uint16_t number = 0;
  int32_t value = 0;    // what the kernel will add to the semaphore
  int64_t since_s = 0;  // CLOCK_REALTIME: when it became other than 0, or was settled or owed again
};

// Does one of the operations ask for it? The caller has found that they can be read.
bool wants_undo(const sembuf* operations, size_t n);

// semtimedop(2) of operations that want it, none of which waits: -EAGAIN where it would. room: for n.
// The timeout is judged by the kernel and means nothing. As the kernel's, no errno.
long operate(int id, const sembuf* operations, size_t n, const timespec* timeout, sembuf* room);
// Around a call with more operations than operate() reckons. made: it has changed something.
void begin_unreckoned();
void end_unreckoned(bool made);

// semctl(2) with SETVAL (of one), SETALL or IPC_RMID (number -1): the kernel forgets all debts of the set, of
// every process.
long semctl_that_forgives(int id, int number, int command, long argument);

// The debts of process `pid`. A debt with the value 0 was paid, unless it may be forgiven.
std::span<const Debt> debts(int pid);
// There are more than fit the list, or some were made by calls that are not reckoned.
bool are_debts_unknown(int pid);
// Was the set changed at `changed_s`, which is its time of last change, since this process had the debt? If
// another process has set values then, the list does not know what is left of the debt: the kernel does
// (kernel_undo.h).
bool may_be_forgiven(const Debt& debt, int64_t changed_s);
// What the kernel has said. debt: one of debts().
void settle(const Debt& debt, int32_t value);

// In a restarted process, when the semaphores have their values. The first error, or 0.
long owe_again(int pid);

}  // namespace ckpt::system_v
