// syscall(2): the system calls whose libc functions this room interposes, and a few without such a function
// (futex, io_getevents, io_uring_enter …). No cancellation points, as in libc.
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/keyctl.h>
#include <sys/mman.h>

#include <array>

#include "libckpt_rt/capture/advice/advice_notes.h"
#include "libckpt_rt/capture/advice/settings_reach.h"
#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/descriptors/noted/directory_notices.h"
#include "libckpt_rt/capture/descriptors/noted/file_signals.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/interpose/descriptors/file_watches.h"
#include "libckpt_rt/interpose/memory/memory.h"
#include "libckpt_rt/interpose/process/clone.h"
#include "libckpt_rt/interpose/signals/handlers.h"
#include "libckpt_rt/interpose/system_v/system_v.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef __NR_landlock_restrict_self
#define __NR_landlock_restrict_self 446
#endif
#ifndef __NR_mseal
#define __NR_mseal 462
#endif
#ifndef __NR_futex_wait
#define __NR_futex_wait 455
#endif

using namespace ckpt;

namespace {

template <typename T>
T* pointer(long value) {
  return reinterpret_cast<T*>(value);
}

// 1: always routed. 2: ckpt_before_clone() says.
constexpr auto kRouted = [] {
  std::array<uint8_t, 512> table{};
  for (int nr : {__NR_nanosleep,
                 __NR_clock_nanosleep,
                 __NR_poll,
                 __NR_ppoll,
                 __NR_select,
                 __NR_pselect6,
                 __NR_epoll_wait,
                 __NR_epoll_pwait,
                 __NR_epoll_pwait2,
                 __NR_pause,
                 __NR_rt_sigsuspend,
                 __NR_rt_sigtimedwait,
                 __NR_inotify_add_watch,
                 __NR_fanotify_init,
                 __NR_fanotify_mark,
                 __NR_semget,
                 __NR_semctl,
                 __NR_semop,
                 __NR_semtimedop,
                 __NR_msgget,
                 __NR_msgctl,
                 __NR_msgsnd,
                 __NR_msgrcv,
                 __NR_io_setup,
                 __NR_io_destroy,
                 __NR_io_submit,
                 __NR_io_getevents,
                 __NR_io_pgetevents,
                 __NR_futex,
                 __NR_futex_waitv,
                 __NR_futex_wait,
                 __NR_read,
                 __NR_write,
                 __NR_readv,
                 __NR_writev,
                 __NR_sendfile,
                 __NR_getrandom,
                 __NR_connect,
                 __NR_accept,
                 __NR_accept4,
                 __NR_bind,
                 __NR_setsockopt,
                 __NR_sigaltstack,
                 __NR_getsockname,
                 __NR_getpeername,
                 __NR_sendto,
                 __NR_recvfrom,
                 __NR_sendmsg,
                 __NR_recvmsg,
                 __NR_sendmmsg,
                 __NR_recvmmsg,
                 __NR_rt_sigaction,
                 __NR_rt_sigprocmask,
                 __NR_rt_sigpending,
                 __NR_signalfd,
                 __NR_signalfd4,
                 __NR_munmap,
                 __NR_mremap,
                 __NR_mmap,
                 __NR_madvise,
                 __NR_mprotect,
                 __NR_pkey_mprotect,
                 __NR_brk,
                 __NR_shmat,
                 __NR_shmdt,
                 __NR_ftruncate,
                 __NR_truncate,
                 __NR_fallocate,
                 __NR_process_madvise,
                 __NR_mbind,
                 __NR_mseal,
                 __NR_remap_file_pages,
                 __NR_wait4,
                 __NR_waitid,
                 __NR_unshare,
                 __NR_seccomp,
                 __NR_ptrace,
                 __NR_prctl,
                 __NR_setns,
                 __NR_landlock_restrict_self,
                 __NR_rseq,
                 __NR_keyctl,
                 __NR_add_key,
                 __NR_request_key,
                 __NR_clock_gettime,
                 __NR_getrusage,
                 __NR_times,
                 __NR_fcntl,
                 __NR_io_uring_setup,
                 __NR_io_uring_enter,
                 __NR_io_uring_register}) {
    table[static_cast<size_t>(nr)] = 1;
  }
  for (int nr : {__NR_fork, __NR_vfork, __NR_clone, __NR_clone3}) table[static_cast<size_t>(nr)] = 2;
  return table;
}();

// ppoll(2), pselect6(2) and select(2) themselves. The kernel writes what remains into the timeout; that it
// cannot, as in read-only memory, is no error.
template <typename Call>
long with_remaining(timespec* timeout, Call call) {
  if (timeout == nullptr) return call(nullptr);
  timespec limit;
  if (!program_memory::read(limit, timeout)) return -EFAULT;
  const timespec before = limit;
  const long r = call(&limit);
  if (limit.tv_sec != before.tv_sec || limit.tv_nsec != before.tv_nsec)
    (void)program_memory::write(timeout, limit);
  return r;
}

long ppoll_call(pollfd* fds, unsigned n, timespec* timeout, const void* mask) {
  return with_remaining(timeout, [=](timespec* limit) { return calls::ppoll(fds, n, limit, mask); });
}

long pselect6_call(int n, void* in, void* out, void* except, timespec* timeout, const void* mask) {
  return with_remaining(timeout,
                        [=](timespec* limit) { return calls::pselect6(n, in, out, except, limit, mask); });
}

long select_call(int n, void* in, void* out, void* except, timeval* timeout) {
  if (timeout == nullptr) return calls::pselect6(n, in, out, except, nullptr, nullptr);
  timeval before;
  if (!program_memory::read(before, timeout)) return -EFAULT;
  timespec limit;
  if (!calls::to_timespec(before, limit)) return -EINVAL;
  const long r = calls::pselect6(n, in, out, except, &limit, nullptr);
  const timeval left{limit.tv_sec, limit.tv_nsec / 1000};
  if (left.tv_sec != before.tv_sec || left.tv_usec != before.tv_usec)
    (void)program_memory::write(timeout, left);
  return r;
}

// As the kernel: what is to be told is written last, after the change.
long signal_mask_call(int how, const uint64_t* set, uint64_t* old, size_t size) {
  if (size != 8) return sys::call(__NR_rt_sigprocmask, long{how}, set, old, size);
  uint64_t wanted = 0, found = 0;
  if (set != nullptr && !program_memory::read(wanted, set)) return -EFAULT;
  const long r = sigprocmask_for_program(how, set != nullptr ? &wanted : nullptr, &found);
  if (r == 0 && old != nullptr && !program_memory::write(old, found)) return -EFAULT;
  return r;
}

long signal_action_call(int signal, const KernelSigaction* action, KernelSigaction* old, size_t size) {
  if (size != 8) return sys::call(__NR_rt_sigaction, long{signal}, action, old, size);
  KernelSigaction wanted{}, found{};
  if (action != nullptr && !program_memory::read(wanted, action)) return -EFAULT;
  const long r = sigaction_for_program(signal, action != nullptr ? &wanted : nullptr, &found);
  if (r == 0 && old != nullptr && !program_memory::write(old, found)) return -EFAULT;
  return r;
}

long pending_call(uint64_t* set, size_t size) {
  long r = sys::call(__NR_rt_sigpending, set, size);
  if (r == 0 && size == 8) *set &= ~checkpoint_bit();
  return r;
}

long signalfd_call(int fd, const uint64_t* set, size_t size, int flags) {
  if (size != 8) return sys::call(__NR_signalfd4, long{fd}, set, size, long{flags});
  uint64_t wanted;
  if (!program_memory::read(wanted, set)) return -EFAULT;
  yield_if_named(wanted);
  wanted &= ~checkpoint_bit();
  return sys::call(__NR_signalfd4, long{fd}, &wanted, size, long{flags});
}

// The vdso's function writes by a store of the thread's own.
long clock_gettime_call(clockid_t clock, timespec* time) {
  if (!processor_time::is_processor_clock(clock)) return sys::call(__NR_clock_gettime, long{clock}, time);
  return calls::clock_gettime(clock, time);
}

long plain(long nr, long a, long b, long c, long d, long e, long f) {
  return InterruptibleCall(nr, a, b, c, d, e, f).run();
}

// The word may lie on a page that the checkpoint under way protects, if it was not noted before the stop.
bool make_writable(long word) {
  return sys::call(__NR_madvise, word & -long{kPageSize}, kPageSize, long{MADV_POPULATE_WRITE}) == 0;
}

long futex_written_by_kernel(long a, long b, long c, long d, long e, long f) {
  hooks::note_futex(pointer<void>(a));
  const int command = static_cast<int>(b) & FUTEX_CMD_MASK;
  const bool second =
      command == FUTEX_WAKE_OP || command == FUTEX_CMP_REQUEUE_PI || command == FUTEX_WAIT_REQUEUE_PI;
  if (second) hooks::note_futex(pointer<void>(e));
  // The page can be protected twice during the call: ahead of the stop, and in it. Later ones know the word.
  for (int refused = 0;; ++refused) {
    const long r = calls::futex(pointer<uint32_t>(a), static_cast<int>(b), static_cast<uint32_t>(c),
                                pointer<timespec>(d), pointer<uint32_t>(e), static_cast<uint32_t>(f));
    if (r != -EFAULT || refused == 2 || !make_writable(a) || (second && !make_writable(e))) return r;
  }
}

// futex_wait(2), futex_waitv(2): absolute timeouts on the clock that an argument names.
long absolute_futex(long nr, int timeout_arg, long clock, long a, long b, long c, long d, long e, long f) {
  InterruptibleCall call(nr, a, b, c, d, e, f);
  call.with_absolute_timeout(timeout_arg, static_cast<clockid_t>(clock));
  return call.run();
}

bool is_own_keyring(long ring) { return ring == KEY_SPEC_THREAD_KEYRING || ring == KEY_SPEC_PROCESS_KEYRING; }

void note_key_in(long ring) {
  if (is_own_keyring(ring)) hooks::note_keyring();
  if (ring == KEY_SPEC_SESSION_KEYRING) hooks::note_session_key();
}

long route(long nr, long a, long b, long c, long d, long e, long f) {
  const int ia = static_cast<int>(a), ib = static_cast<int>(b), ic = static_cast<int>(c),
            id = static_cast<int>(d);
  const size_t ub = static_cast<size_t>(b), uc = static_cast<size_t>(c), ud = static_cast<size_t>(d);
  switch (nr) {
    case __NR_nanosleep:
      return calls::clock_nanosleep(CLOCK_REALTIME, 0, pointer<const timespec>(a), pointer<timespec>(b));
    case __NR_clock_nanosleep:
      return calls::clock_nanosleep(ia, ib, pointer<const timespec>(c), pointer<timespec>(d));
    case __NR_poll:
      return calls::poll(pointer<pollfd>(a), static_cast<unsigned>(b), ic);
    case __NR_ppoll:
      if (d != 0 && e != 8) break;
      return ppoll_call(pointer<pollfd>(a), static_cast<unsigned>(b), pointer<timespec>(c), pointer<void>(d));
    case __NR_select:
      return select_call(ia, pointer<void>(b), pointer<void>(c), pointer<void>(d), pointer<timeval>(e));
    case __NR_pselect6: {
      KernelMaskArgument mask{};
      if (f != 0 &&
          (!program_memory::read(mask, pointer<void>(f)) || (mask.mask != nullptr && mask.size != 8)))
        break;
      return pselect6_call(ia, pointer<void>(b), pointer<void>(c), pointer<void>(d), pointer<timespec>(e),
                           mask.mask);
    }
    case __NR_epoll_wait:
      return calls::epoll_wait(ia, pointer<void>(b), ic, id);
    case __NR_epoll_pwait:
      if (e != 0 && f != 8) break;
      return calls::epoll_pwait(ia, pointer<void>(b), ic, id, pointer<void>(e));
    case __NR_epoll_pwait2:
      if (e != 0 && f != 8) break;
      return calls::epoll_pwait2(ia, pointer<void>(b), ic, pointer<timespec>(d), pointer<void>(e));
    case __NR_pause:
      return calls::pause();
    case __NR_rt_sigsuspend:
      if (b != 8) break;
      return calls::sigsuspend(pointer<void>(a));
    case __NR_rt_sigtimedwait:
      if (d != 8) break;
      return calls::sigtimedwait(pointer<void>(a), pointer<void>(b), pointer<timespec>(c));
    case __NR_clock_gettime:
      return clock_gettime_call(ia, pointer<timespec>(b));
    case __NR_getrusage:
      return calls::getrusage(ia, pointer<rusage>(b));
    case __NR_times:
      return calls::times(pointer<tms>(a));
    case __NR_fcntl: {
      const long r = plain(nr, a, b, c, d, e, f);
      if (r == 0 && ib == F_SETSIG) file_signals::note_choice();
      if (r == 0 && ib == F_NOTIFY) directory_notices::note(ia, static_cast<uint32_t>(c));
      return r;
    }
    case __NR_inotify_add_watch:
    case __NR_fanotify_init:
    case __NR_fanotify_mark:
      return calls::watch_files(nr, a, b, c, d, e);
    case __NR_semget:
      return calls::semget(ia, ib, ic);
    case __NR_semctl:
      return calls::semctl(ia, ib, ic, d);
    case __NR_semop:
      return calls::semtimedop_noted(ia, pointer<sembuf>(b), static_cast<unsigned>(c), nullptr);
    case __NR_semtimedop:
      return calls::semtimedop_noted(ia, pointer<sembuf>(b), static_cast<unsigned>(c), pointer<timespec>(d));
    case __NR_msgget:
      return calls::msgget(ia, ib);
    case __NR_msgctl:
      return calls::msgctl(ia, ib, pointer<void>(c));
    case __NR_msgsnd:
      return calls::msgsnd_noted(ia, pointer<void>(b), uc, id);
    case __NR_msgrcv:
      return calls::msgrcv_noted(ia, pointer<void>(b), uc, d, static_cast<int>(e));
    case __NR_io_setup:
      return aio_contexts::setup(a, pointer<unsigned long>(b));
    case __NR_io_destroy:
      return aio_contexts::destroy(static_cast<uint64_t>(a));
    case __NR_io_submit:
      return aio_contexts::submit(static_cast<uint64_t>(a), b, pointer<void>(c));
    case __NR_io_uring_setup:
      return rings::setup(a, pointer<void>(b));
    case __NR_io_uring_register:
      return rings::registration(a, b, pointer<void>(c), d);
    case __NR_io_getevents:
      return calls::io_getevents(a, b, c, pointer<void>(d), pointer<timespec>(e));
    case __NR_io_pgetevents:
      return calls::io_pgetevents(a, b, c, pointer<void>(d), pointer<timespec>(e),
                                  pointer<KernelMaskArgument>(f));
    case __NR_futex:
      if (futex_words::written_by_kernel(static_cast<uint32_t>(b)))
        return futex_written_by_kernel(a, b, c, d, e, f);
      return calls::futex(pointer<uint32_t>(a), ib, static_cast<uint32_t>(c), pointer<timespec>(d),
                          pointer<uint32_t>(e), static_cast<uint32_t>(f));
    case __NR_futex_waitv:
      return absolute_futex(nr, 3, e, a, b, c, d, e, f);
    case __NR_futex_wait:
      return absolute_futex(nr, 4, f, a, b, c, d, e, f);
    case __NR_read:
      return calls::read(ia, pointer<void>(b), uc);
    case __NR_write:
      return calls::write(ia, pointer<void>(b), uc);
    case __NR_readv:
      return calls::readv(ia, pointer<iovec>(b), ic);
    case __NR_writev:
      return calls::writev(ia, pointer<iovec>(b), ic);
    case __NR_sendfile:
      return calls::sendfile(ia, ib, pointer<void>(c), ud);
    case __NR_getrandom:
      return calls::getrandom(pointer<void>(a), ub, static_cast<unsigned>(c));
    case __NR_connect:
      return calls::connect(ia, pointer<void>(b), static_cast<uint32_t>(c));
    case __NR_accept:
      return calls::accept4(ia, pointer<void>(b), pointer<socklen_t>(c), 0);
    case __NR_accept4:
      return calls::accept4(ia, pointer<void>(b), pointer<socklen_t>(c), id);
    case __NR_bind:
      return calls::bind(ia, pointer<void>(b), static_cast<uint32_t>(c));
    case __NR_sigaltstack:
      return calls::sigaltstack(pointer<stack_t>(a), pointer<stack_t>(b));
    case __NR_setsockopt:
      return calls::setsockopt(ia, ib, ic, pointer<void>(d), static_cast<socklen_t>(e));
    case __NR_getsockname:
    case __NR_getpeername:
      return calls::socket_name(nr, ia, pointer<void>(b), pointer<socklen_t>(c));
    case __NR_sendto:
      return calls::sendto(ia, pointer<void>(b), uc, id, pointer<void>(e), static_cast<uint32_t>(f));
    case __NR_recvfrom:
      return calls::recvfrom(ia, pointer<void>(b), uc, id, pointer<void>(e), pointer<socklen_t>(f));
    case __NR_sendmsg:
      return calls::sendmsg(ia, pointer<msghdr>(b), ic);
    case __NR_recvmsg:
      return calls::recvmsg(ia, pointer<msghdr>(b), ic);
    case __NR_sendmmsg:
      return calls::sendmmsg(ia, pointer<mmsghdr>(b), static_cast<unsigned>(c), id);
    case __NR_recvmmsg:
      return calls::recvmmsg(ia, pointer<mmsghdr>(b), static_cast<unsigned>(c), id, pointer<timespec>(e));
    case __NR_rt_sigaction:
      return signal_action_call(ia, pointer<KernelSigaction>(b), pointer<KernelSigaction>(c), ud);
    case __NR_rt_sigprocmask:
      return signal_mask_call(ia, pointer<uint64_t>(b), pointer<uint64_t>(c), ud);
    case __NR_rt_sigpending:
      return pending_call(pointer<uint64_t>(a), ub);
    case __NR_signalfd:
      return signalfd_call(ia, pointer<uint64_t>(b), uc, 0);
    case __NR_signalfd4:
      return signalfd_call(ia, pointer<uint64_t>(b), uc, id);
    case __NR_munmap:
      return calls::munmap(pointer<void>(a), ub);
    case __NR_mremap:
      return calls::mremap(pointer<void>(a), ub, uc, id, pointer<void>(e));
    case __NR_mmap:
      return calls::mmap(pointer<void>(a), ub, ic, id, static_cast<int>(e), f);
    case __NR_madvise:
      return calls::madvise(pointer<void>(a), ub, ic);
    case __NR_mprotect:
      return calls::mprotect(pointer<void>(a), ub, ic);
    case __NR_pkey_mprotect:
      return calls::pkey_mprotect(pointer<void>(a), ub, ic, id);
    case __NR_brk:
      return calls::brk(pointer<void>(a));
    case __NR_shmat:
      return calls::shmat(ia, pointer<void>(b), ic);
    case __NR_shmdt:
      return calls::shmdt(pointer<void>(a));
    case __NR_ftruncate:
      return calls::ftruncate(ia, b);
    case __NR_truncate:
      return calls::truncate(pointer<char>(a), b);
    case __NR_fallocate:
      return calls::fallocate(ia, ib, c, d);
    case __NR_process_madvise:
      return calls::process_madvise(ia, pointer<void>(b), uc, id, static_cast<unsigned>(e));
    case __NR_mbind:  // libc has no function for it: libnuma comes by here
      memory_settings::policies_reach.extend(Addr{static_cast<uint64_t>(a)}, ub);
      break;
    case __NR_mseal:
      memory_advice::note_seal();
      break;
    case __NR_wait4:
      return calls::wait4(a, pointer<int>(b), ic, pointer<void>(d));
    case __NR_waitid:
      return calls::waitid(a, b, pointer<void>(c), id, pointer<void>(e));
    case __NR_unshare:
      return calls::unshare(ia);
    case __NR_seccomp:
      return calls::seccomp(static_cast<unsigned>(a), static_cast<unsigned>(b), pointer<void>(c));
    case __NR_ptrace:
      return calls::ptrace(a, b, c, d);
    case __NR_prctl:
      return calls::prctl(ia, b, c, d, e);
    case __NR_setns:
      return calls::setns(ia, ib);
    case __NR_landlock_restrict_self: {
      const long r = plain(nr, a, b, c, d, e, f);
      if (r == 0) hooks::note_landlock();
      return r;
    }
    case __NR_rseq: {
      constexpr long kUnregister = 1;  // RSEQ_FLAG_UNREGISTER
      // Ahead of the call, for a stop may come right behind it: whether it is registered the stop asks the
      // kernel.
      hooks::RseqArea before{};
      if (c != kUnregister)
        before =
            hooks::note_rseq({static_cast<uintptr_t>(a), static_cast<uint32_t>(b), static_cast<uint32_t>(d)});
      const long r = plain(nr, a, b, c, d, e, f);
      if (c == kUnregister ? r == 0 : r != 0) hooks::note_rseq(before);
      return r;
    }
    case __NR_keyctl:
      if (a == KEYCTL_JOIN_SESSION_KEYRING || (a == KEYCTL_GET_KEYRING_ID && is_own_keyring(b)))
        hooks::note_keyring();
      if (a == KEYCTL_LINK) note_key_in(c);
      break;
    case __NR_add_key:
      note_key_in(e);
      break;
    case __NR_request_key:
      note_key_in(d);
      break;
    case __NR_remap_file_pages:
      return calls::remap_file_pages(pointer<void>(a), ub, ic, ud, static_cast<int>(e));
    case __NR_fork:
    case __NR_clone:
    case __NR_clone3:
      return calls::fork_call(nr, a, b, c, d, e);
    default:
      break;
  }
  // A wait without a timeout that we would have to shorten, or arguments that the kernel will refuse.
  return plain(nr, a, b, c, d, e, f);
}

}  // namespace

extern "C" {
[[gnu::visibility("hidden")]] extern const std::array<uint8_t, 512> ckpt_routed_syscalls;
const std::array<uint8_t, 512> ckpt_routed_syscalls = kRouted;

[[gnu::visibility("hidden")]] long ckpt_routed_syscall(long nr, long a, long b, long c, long d, long e,
                                                       long f) {
  return to_errno(route(nr, a, b, c, d, e, f));
}
}
