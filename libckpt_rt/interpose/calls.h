// The interposed system calls themselves, shared by libc's names for them and by syscall(2): results are
// the kernel's, arguments those of the system call, no cancellation, no errno.
//
// Owner:     libckpt_rt/interpose. Inline, but for those at the end: process/namespaces.cc, process/prctl.cc;
//            and bind().
// Callers:   threads of the program.
#pragma once

#include <linux/futex.h>
#include <sys/times.h>

#include <algorithm>

#include "base/sys.h"
#include "libckpt_rt/core/process/seccomp/own_filters.h"
#include "libckpt_rt/core/threads/processor_time.h"
#include "libckpt_rt/interpose/addresses/addresses.h"
#include "libckpt_rt/interpose/addresses/many_messages.h"
#include "libckpt_rt/interpose/addresses/unaccepted.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"

namespace ckpt::calls {

// processor_calls.cc: with what was used before a restart.
long clock_gettime(clockid_t clock, timespec* time);
long getrusage(int who, rusage* used);
long times(tms* used);

template <typename T>
long word(T value) {
  return sys::as_word(value);
}

// nanosleep(2) is a relative clock_nanosleep with CLOCK_REALTIME. The kernel measures both by
// CLOCK_MONOTONIC.
inline long clock_nanosleep(clockid_t clock, int flags, const timespec* request, timespec* remaining) {
  InterruptibleCall c(__NR_clock_nanosleep, clock, flags, word(request));
  if ((flags & TIMER_ABSTIME) != 0) {
    // The kernel has not counted what was used before a restart.
    timespec counted_anew;
    if (processor_time::is_processor_clock(clock) && processor_time::earlier(clock) != 0 &&
        program_memory::read(counted_anew, request)) {
      counted_anew = processor_time::as_counted_anew(clock, counted_anew);
      c.args[2] = word(&counted_anew);
    }
    c.with_absolute_timeout(2, clock);
    return c.run();
  }
  c.args[3] = word(&c.remaining);
  c.with_timeout_pointer(2, clock == CLOCK_REALTIME ? CLOCK_MONOTONIC : clock);
  long r = c.run();
  if (r == -EINTR && remaining != nullptr && !program_memory::write(remaining, c.remaining)) return -EFAULT;
  return r;
}

inline long poll(pollfd* fds, unsigned long n, int milliseconds) {
  InterruptibleCall c(__NR_poll, word(fds), word(n), milliseconds);
  c.with_milliseconds(2);
  return c.run();
}

// The kernel writes what remains into *timeout.
inline long ppoll(pollfd* fds, unsigned long n, timespec* timeout, const void* mask) {
  InterruptibleCall c(__NR_ppoll, word(fds), word(n), 0, 0, 8);
  if (timeout != nullptr) c.with_own_timeout(2, *timeout);
  c.with_mask(3, mask);
  long r = c.run();
  if (timeout != nullptr) *timeout = c.timeout;
  return r;
}

// The timeout of select(2), which may have a million microseconds and more. False: none that the kernel
// takes.
inline bool to_timespec(const timeval& from, timespec& to) {
  constexpr long kMicroseconds = 1'000'000;
  if (from.tv_sec < 0 || from.tv_usec < 0) return false;
  to.tv_nsec = from.tv_usec % kMicroseconds * 1000;
  if (__builtin_add_overflow(from.tv_sec, from.tv_usec / kMicroseconds, &to.tv_sec))
    to = {INT64_MAX, 999'999'999};
  return true;
}

// The kernel writes what remains into *timeout.
inline long pselect6(int n, void* in, void* out, void* except, timespec* timeout, const void* mask) {
  InterruptibleCall c(__NR_pselect6, n, word(in), word(out), word(except));
  if (timeout != nullptr) c.with_own_timeout(4, *timeout);
  c.with_packed_mask(5, mask);
  long r = c.run();
  if (timeout != nullptr) *timeout = c.timeout;
  return r;
}

inline long epoll_wait(int fd, void* events, int n, int milliseconds) {
  InterruptibleCall c(__NR_epoll_wait, fd, word(events), n, milliseconds);
  c.with_milliseconds(3);
  return c.run();
}

inline long epoll_pwait(int fd, void* events, int n, int milliseconds, const void* mask) {
  InterruptibleCall c(__NR_epoll_pwait, fd, word(events), n, milliseconds, 0, 8);
  c.with_milliseconds(3);
  c.with_mask(4, mask);
  return c.run();
}

inline long epoll_pwait2(int fd, void* events, int n, const timespec* timeout, const void* mask) {
  InterruptibleCall c(__NR_epoll_pwait2, fd, word(events), n, word(timeout), 0, 8);
  c.with_timeout_pointer(3);
  c.with_mask(4, mask);
  return c.run();
}

inline long pause() { return InterruptibleCall(__NR_pause).run(); }

inline long sigsuspend(const void* mask) {
  InterruptibleCall c(__NR_rt_sigsuspend, 0, 8);
  c.with_mask(0, mask);
  return c.run();
}

// Waits for the signals in `set`, without the checkpoint signal.
inline long sigtimedwait(const void* set, void* info, const timespec* timeout) {
  uint64_t waited_for;
  if (!program_memory::read(waited_for, set)) return -EFAULT;
  yield_if_named(waited_for);
  waited_for &= ~checkpoint_bit();
  InterruptibleCall c(__NR_rt_sigtimedwait, word(&waited_for), word(info), word(timeout), 8);
  c.with_timeout_pointer(2);
  return c.run();
}

inline long semtimedop(int id, void* operations, size_t n, const timespec* timeout) {
  InterruptibleCall c(__NR_semtimedop, id, word(operations), word(n), word(timeout));
  c.with_timeout_pointer(3);
  return c.run();
}

inline long msgsnd(int id, const void* message, size_t size, int flags) {
  return InterruptibleCall(__NR_msgsnd, id, word(message), word(size), flags).run();
}

inline long msgrcv(int id, void* message, size_t size, long type, int flags) {
  return InterruptibleCall(__NR_msgrcv, id, word(message), word(size), type, flags).run();
}

inline long io_getevents(long context, long least, long n, void* events, const timespec* timeout) {
  InterruptibleCall c(__NR_io_getevents, context, least, n, word(events), word(timeout));
  c.with_timeout_pointer(4);
  return c.run();
}

inline long io_pgetevents(long context, long least, long n, void* events, const timespec* timeout,
                          const KernelMaskArgument* mask) {
  InterruptibleCall c(__NR_io_pgetevents, context, least, n, word(events), word(timeout));
  c.with_timeout_pointer(4);
  c.args[5] = word(mask);
  KernelMaskArgument named;
  if (mask != nullptr && program_memory::read(named, mask) && named.size == 8)
    c.with_packed_mask(5, named.mask);
  return c.run();
}

// FUTEX_WAIT has a relative timeout; the other operations that wait have absolute ones.
inline long futex(uint32_t* word_address, int operation, uint32_t value, const timespec* timeout,
                  uint32_t* second, uint32_t third) {
  InterruptibleCall c(__NR_futex, word(word_address), operation, value, word(timeout), word(second), third);
  const int command = operation & FUTEX_CMD_MASK;
  const clockid_t clock = (operation & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
  if (command == FUTEX_WAIT) {
    c.with_timeout_pointer(3, clock);
  } else if (command == FUTEX_WAIT_BITSET || command == FUTEX_LOCK_PI2 || command == FUTEX_WAIT_REQUEUE_PI) {
    c.with_absolute_timeout(3, clock);
  }
  return c.run();
}

inline long read(int fd, void* buffer, size_t n) {
  InterruptibleCall c(__NR_read, fd, word(buffer), word(n));
  c.with_socket_timeout(Timeout::kSocketReceive);
  c.progress = Progress::kMemoryDevice;
  return c.run();
}

inline long write(int fd, const void* buffer, size_t n) {
  InterruptibleCall c(__NR_write, fd, word(buffer), word(n));
  c.with_socket_timeout(Timeout::kSocketSend);
  c.progress = Progress::kBytes;
  return c.run();
}

inline long readv(int fd, const iovec* pieces, int n) {
  InterruptibleCall c(__NR_readv, fd, word(pieces), n);
  c.with_socket_timeout(Timeout::kSocketReceive);
  return c.run();
}

inline long writev(int fd, const iovec* pieces, int n) {
  VectorScratch scratch;
  InterruptibleCall c(__NR_writev, fd, word(pieces), n);
  c.with_socket_timeout(Timeout::kSocketSend);
  c.progress = Progress::kVector;
  c.scratch = &scratch;
  return c.run();
}

inline long sendfile(int out, int in, void* offset, size_t n) {
  InterruptibleCall c(__NR_sendfile, out, in, word(offset), word(n));
  c.with_socket_timeout(Timeout::kSocketSend);
  c.progress = Progress::kCount;
  return c.run();
}

inline long getrandom(void* buffer, size_t n, unsigned flags) {
  InterruptibleCall c(__NR_getrandom, word(buffer), word(n), flags);
  c.progress = Progress::kRandom;
  return c.run();
}

// connect(2) in which a handler of the program has run that ends such a call (waits/connect.cc).
long interrupted_connect(int fd, const void* address, uint32_t length);

// to: an address of the machine.
inline long connect_to(int fd, const void* to, uint32_t length) {
  if (__builtin_expect(hooks::before_connect(fd), 0)) return interrupted_connect(fd, to, length);
  InterruptibleCall c(__NR_connect, fd, word(to), length);
  c.with_socket_timeout(Timeout::kSocketSend);
  const long result = c.run();
  // The connection was made while the thread stood. The kernel in which this call was interrupted would say
  // 0. In a restarted process the socket is made anew, connected, and the kernel knows of no call.
  return result == -EISCONN && c.resumed != Resumed::kNo ? 0 : result;
}

inline long connect(int fd, const void* address, uint32_t length) {
  sockaddr_storage copy;
  addresses::PortChoice port(fd);
  const void* const to = addresses::to_machine(address, length, copy);
  long result;
  do {
    result = connect_to(fd, to, length);
  } while (port.again(result));
  return result;
}

long bind(int fd, const void* address, uint32_t length);  // bind.cc

long ptrace(long request, long tid, long address, long data);  // process/ptrace.cc
void note_wait(int options);                                   // process/wait.cc
long wait4(long pid, int* status, int options, void* usage);
long waitid(long kind, long id, void* info, int options, void* usage);
long sigaltstack(const stack_t* wanted, stack_t* old);  // signals/alternate_stack.cc
long setsockopt(int fd, int level, int option, const void* value, socklen_t length);  // setsockopt.cc
// getsockname(2), getpeername(2).
inline long socket_name(long nr, int fd, void* address, socklen_t* length) {
  const socklen_t room = addresses::room(address, length);
  const long r = sys::call(nr, fd, address, length);
  if (r == 0 && room != 0) addresses::to_job(address, std::min(room, *length), nr == __NR_getsockname);
  return r;
}

inline long accept4(int fd, void* address, socklen_t* length, int flags) {
  if (addresses::over_hosts) return addresses::accept4_over_hosts(fd, address, length, flags);
  InterruptibleCall c(__NR_accept4, fd, word(address), word(length), flags);
  c.with_socket_timeout(Timeout::kSocketReceive);
  return c.run();
}

inline long sendto(int fd, const void* buffer, size_t n, int flags, const void* address, uint32_t length) {
  sockaddr_storage copy;
  addresses::PortChoice port(fd, address != nullptr);
  const void* const to = addresses::to_machine(address, length, copy);
  long result;
  do {
    InterruptibleCall c(__NR_sendto, fd, word(buffer), word(n), flags, word(to), length);
    c.with_socket_timeout(Timeout::kSocketSend);
    c.progress = Progress::kBytes;
    result = c.run();
  } while (port.again(result));
  return result;
}

inline long recvfrom(int fd, void* buffer, size_t n, int flags, void* address, socklen_t* length) {
  const socklen_t room = addresses::room(address, length);
  InterruptibleCall c(__NR_recvfrom, fd, word(buffer), word(n), flags, word(address), word(length));
  c.with_socket_timeout(Timeout::kSocketReceive);
  c.progress = Progress::kBytes;
  const long r = c.run();
  if (r >= 0 && room != 0) addresses::to_job(address, std::min(room, *length));
  return r;
}

inline long message(long nr, Timeout direction, int fd, const msghdr* m, int flags) {
  VectorScratch scratch;
  InterruptibleCall c(nr, fd, word(m), flags);
  c.with_socket_timeout(direction);
  c.progress = Progress::kMessage;
  c.scratch = &scratch;
  return c.run();
}

inline long sendmsg(int fd, const msghdr* m, int flags) {
  msghdr other;
  if (addresses::count.load(std::memory_order_relaxed) != 0 && program_memory::read(other, m) &&
      other.msg_name != nullptr) {
    sockaddr_storage copy;
    addresses::PortChoice port(fd);
    other.msg_name = const_cast<void*>(addresses::to_machine(other.msg_name, other.msg_namelen, copy));
    long result;
    do {
      result = message(__NR_sendmsg, Timeout::kSocketSend, fd, &other, flags);
    } while (port.again(result));
    return result;
  }
  return message(__NR_sendmsg, Timeout::kSocketSend, fd, m, flags);
}

inline long recvmsg(int fd, msghdr* m, int flags) {
  const socklen_t room = addresses::over_hosts && program_memory::may_read(m, sizeof(*m))
                             ? addresses::room(m->msg_name, &m->msg_namelen)
                             : 0;
  const long r = message(__NR_recvmsg, Timeout::kSocketReceive, fd, m, flags);
  if (r >= 0 && room != 0) addresses::to_job(m->msg_name, std::min(room, m->msg_namelen));
  return r;
}

inline long sendmmsg(int fd, mmsghdr* m, unsigned n, int flags) {
  if (addresses::names_any(m, n)) return addresses::sendmmsg_one_by_one(fd, m, n, flags);
  VectorScratch scratch;
  InterruptibleCall c(__NR_sendmmsg, fd, word(m), n, flags);
  c.with_socket_timeout(Timeout::kSocketSend);
  c.progress = Progress::kMessages;
  c.scratch = &scratch;
  return c.run();
}

inline long recvmmsg_as_it_is(int fd, mmsghdr* m, unsigned n, int flags, timespec* timeout) {
  InterruptibleCall c(__NR_recvmmsg, fd, word(m), n, flags, word(timeout));
  c.with_socket_timeout(Timeout::kSocketReceive);
  c.progress = Progress::kMessages;
  return c.run();
}

inline long recvmmsg(int fd, mmsghdr* m, unsigned n, int flags, timespec* timeout) {
  if (addresses::over_hosts) return addresses::recvmmsg_over_hosts(fd, m, n, flags, timeout);
  return recvmmsg_as_it_is(fd, m, n, flags, timeout);
}

// No thread of ours exists during these calls. (Of seccomp: where its filter is for all threads.)
long unshare(int flags);
long setns(int fd, int kind);
long seccomp(unsigned operation, unsigned flags, void* argument);
long set_filter(own_filters::By by, unsigned flags, void* program);

long prctl(int operation, long a, long b, long c, long d);
// Makes the call `nr` by which the thread becomes strict: after it only read, write, exit and sigreturn are
// allowed.
long become_strict(long nr, long a, long b, long c, long d, long e);

}  // namespace ckpt::calls
