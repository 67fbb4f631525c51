// System V semaphores and message queues, as the interposed calls make them: they note which ones the program
// uses.
//
// Owner:     libckpt_rt/interpose. Callers: threads of the program. Results are the kernel's, no errno, no
//            cancellation.
// Never:     allocates, takes a lock of libc.
#pragma once

#include <sys/sem.h>
#include <time.h>

#include <cstddef>

namespace ckpt::calls {

long semget(int key, int count, int flags);
long semctl(int id, int number, int command, long argument);
long semtimedop_noted(int id, sembuf* operations, size_t n, const timespec* timeout);
long msgget(int key, int flags);
long msgctl(int id, int command, void* argument);
long msgsnd_noted(int id, const void* message, size_t size, int flags);
long msgrcv_noted(int id, void* message, size_t size, long type, int flags);

}  // namespace ckpt::calls
