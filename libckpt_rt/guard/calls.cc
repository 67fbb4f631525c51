#include "libckpt_rt/guard/calls.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/sys.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::guard {

namespace {

enum class Size : uint8_t {
  kNone,
  kBytes,      // n bytes
  kArgument,   // as many bytes as argument `of` says, and n more
  kElements,   // n bytes for each of argument `of`
  kVector,     // iovec array of `of` elements: what they point to
  kMessage,    // one msghdr: what it points to, and itself
  kMessages,   // `of` mmsghdr
  kByPointer,  // as many bytes as the word says that argument `of` points to; that word as well
};

struct Output {
  uint8_t argument = 0;
  Size size = Size::kNone;
  uint8_t of = 0;
  uint16_t n = 0;
};

struct Call {
  uint16_t nr;
  Output out[4];
};

constexpr Output bytes(uint8_t argument, uint16_t n) { return {argument, Size::kBytes, 0, n}; }
constexpr Output by(uint8_t argument, uint8_t of) { return {argument, Size::kArgument, of, 0}; }
constexpr Output each(uint8_t argument, uint8_t of, uint16_t n) { return {argument, Size::kElements, of, n}; }
constexpr Output vec(uint8_t argument, uint8_t of) { return {argument, Size::kVector, of, 0}; }
constexpr Output address(uint8_t argument, uint8_t of) { return {argument, Size::kByPointer, of, 0}; }

// x86-64. Calls that write nothing to the caller's memory are in kSilent.
constexpr Call kCalls[] = {
    {__NR_read, {by(1, 2)}},
    {__NR_pread64, {by(1, 2)}},
    {__NR_readv, {vec(1, 2)}},
    {__NR_preadv, {vec(1, 2)}},
    {__NR_preadv2, {vec(1, 2)}},
    {__NR_process_vm_readv, {vec(1, 2)}},
    {__NR_recvfrom, {by(1, 2), address(4, 5)}},
    {__NR_recvmsg, {{1, Size::kMessage, 0, 0}}},
    {__NR_recvmmsg, {{1, Size::kMessages, 2, 0}, bytes(4, 16)}},
    {__NR_sendmmsg, {each(1, 2, 64)}},
    {__NR_accept, {address(1, 2)}},
    {__NR_accept4, {address(1, 2)}},
    {__NR_getsockname, {address(1, 2)}},
    {__NR_getpeername, {address(1, 2)}},
    {__NR_getsockopt, {address(3, 4)}},
    {__NR_socketpair, {bytes(3, 8)}},
    {__NR_sendfile, {bytes(2, 8)}},
    {__NR_splice, {bytes(1, 8), bytes(3, 8)}},
    {__NR_copy_file_range, {bytes(1, 8), bytes(3, 8)}},
    {__NR_stat, {bytes(1, 144)}},
    {__NR_fstat, {bytes(1, 144)}},
    {__NR_lstat, {bytes(1, 144)}},
    {__NR_newfstatat, {bytes(2, 144)}},
    {__NR_statx, {bytes(4, 256)}},
    {__NR_statfs, {bytes(1, 120)}},
    {__NR_fstatfs, {bytes(1, 120)}},
    {__NR_getdents, {by(1, 2)}},
    {__NR_getdents64, {by(1, 2)}},
    {__NR_getcwd, {by(0, 1)}},
    {__NR_readlink, {by(1, 2)}},
    {__NR_readlinkat, {by(2, 3)}},
    {__NR_getxattr, {by(2, 3)}},
    {__NR_lgetxattr, {by(2, 3)}},
    {__NR_fgetxattr, {by(2, 3)}},
    {__NR_listxattr, {by(1, 2)}},
    {__NR_llistxattr, {by(1, 2)}},
    {__NR_flistxattr, {by(1, 2)}},
    {__NR_poll, {each(0, 1, 8)}},
    {__NR_ppoll, {each(0, 1, 8), bytes(2, 16)}},
    {__NR_epoll_wait, {each(1, 2, 12)}},
    {__NR_epoll_pwait, {each(1, 2, 12)}},
    {__NR_epoll_pwait2, {each(1, 2, 12)}},
    {__NR_pipe, {bytes(0, 8)}},
    {__NR_pipe2, {bytes(0, 8)}},
    {__NR_nanosleep, {bytes(1, 16)}},
    {__NR_clock_nanosleep, {bytes(3, 16)}},
    {__NR_getitimer, {bytes(1, 32)}},
    {__NR_setitimer, {bytes(2, 32)}},
    {__NR_clock_gettime, {bytes(1, 16)}},
    {__NR_clock_getres, {bytes(1, 16)}},
    {__NR_gettimeofday, {bytes(0, 16), bytes(1, 8)}},
    {__NR_time, {bytes(0, 8)}},
    {__NR_times, {bytes(0, 32)}},
    {__NR_timer_create, {bytes(2, 8)}},
    {__NR_timer_settime, {bytes(3, 32)}},
    {__NR_timer_gettime, {bytes(1, 32)}},
    {__NR_timerfd_settime, {bytes(3, 32)}},
    {__NR_timerfd_gettime, {bytes(1, 32)}},
    {__NR_getrusage, {bytes(1, 144)}},
    {__NR_getrlimit, {bytes(1, 16)}},
    {__NR_prlimit64, {bytes(3, 16)}},
    {__NR_sysinfo, {bytes(0, 112)}},
    {__NR_uname, {bytes(0, 390)}},
    {__NR_getgroups, {each(1, 0, 4)}},
    {__NR_getresuid, {bytes(0, 4), bytes(1, 4), bytes(2, 4)}},
    {__NR_getresgid, {bytes(0, 4), bytes(1, 4), bytes(2, 4)}},
    {__NR_getrandom, {by(0, 1)}},
    {__NR_getcpu, {bytes(0, 4), bytes(1, 4)}},
    {__NR_capget, {bytes(0, 8), bytes(1, 24)}},
    {__NR_capset, {bytes(0, 8)}},  // the version it would have liked
    {__NR_sched_getaffinity, {by(2, 1)}},
    {__NR_sched_getparam, {bytes(1, 4)}},
    {__NR_sched_getattr, {by(1, 2)}},
    {__NR_sched_setattr, {bytes(1, 8)}},  // the size it would have liked
    {__NR_sched_rr_get_interval, {bytes(1, 16)}},
    {__NR_get_robust_list, {bytes(1, 8), bytes(2, 8)}},
    {__NR_set_tid_address, {bytes(0, 4)}},
    {__NR_rseq, {by(0, 1)}},
    {__NR_rt_sigpending, {by(0, 1)}},
    {__NR_rt_sigtimedwait, {bytes(1, 128)}},
    {__NR_wait4, {bytes(1, 4), bytes(3, 144)}},
    {__NR_waitid, {bytes(2, 128), bytes(4, 144)}},
    {__NR_msgrcv, {{1, Size::kArgument, 2, 8}}},
    {__NR_mq_timedreceive, {by(1, 2), bytes(3, 4)}},
    {__NR_mq_getsetattr, {bytes(2, 64)}},
    // Memory that the program gives back, or whose protection it changes, is copied before.
    {__NR_munmap, {by(0, 1)}},
    {__NR_mprotect, {by(0, 1)}},
    {__NR_pkey_mprotect, {by(0, 1)}},
    {__NR_madvise, {by(0, 1)}},
    // The kernel writes to what it locks, to make it exist.
    {__NR_mlock, {by(0, 1)}},
    {__NR_mlock2, {by(0, 1)}},
};

constexpr uint16_t kSilent[] = {
    __NR_write,
    __NR_pwrite64,
    __NR_writev,
    __NR_pwritev,
    __NR_pwritev2,
    __NR_open,
    __NR_openat,
    __NR_creat,
    __NR_lseek,
    __NR_access,
    __NR_faccessat,
    __NR_faccessat2,
    __NR_sched_yield,
    __NR_msync,
    __NR_munlock,
    __NR_membarrier,
    __NR_dup,
    __NR_socket,
    __NR_bind,
    __NR_listen,
    __NR_connect,
    __NR_shutdown,
    __NR_setsockopt,
    __NR_sendto,
    __NR_sendmsg,
    __NR_tee,
    __NR_epoll_create,
    __NR_epoll_create1,
    __NR_epoll_ctl,
    __NR_eventfd,
    __NR_eventfd2,
    __NR_signalfd,
    __NR_signalfd4,
    __NR_timerfd_create,
    __NR_inotify_init,
    __NR_inotify_init1,
    __NR_inotify_add_watch,
    __NR_inotify_rm_watch,
    __NR_memfd_create,
    __NR_alarm,
    __NR_clock_settime,
    __NR_setrlimit,
    __NR_getpid,
    __NR_gettid,
    __NR_getppid,
    __NR_getuid,
    __NR_geteuid,
    __NR_getgid,
    __NR_getegid,
    __NR_getpgid,
    __NR_getpgrp,
    __NR_getsid,
    __NR_setsid,
    __NR_setpgid,
    __NR_getpriority,
    __NR_setpriority,
    __NR_sched_setaffinity,
    __NR_sched_setscheduler,
    __NR_sched_getscheduler,
    __NR_sched_setparam,
    __NR_sched_get_priority_max,
    __NR_sched_get_priority_min,
    __NR_set_robust_list,
    __NR_rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo,
    __NR_rt_sigsuspend,
    __NR_kill,
    __NR_tkill,
    __NR_tgkill,
    __NR_pause,
    __NR_timer_getoverrun,
    __NR_timer_delete,
    __NR_semget,
    __NR_semop,
    __NR_semtimedop,
    __NR_msgget,
    __NR_msgsnd,
    __NR_shmget,
    __NR_mq_open,
    __NR_mq_unlink,
    __NR_mq_timedsend,
    __NR_mq_notify,
    __NR_chmod,
    __NR_fchmod,
    __NR_fchmodat,
    __NR_chown,
    __NR_fchown,
    __NR_lchown,
    __NR_fchownat,
    __NR_mkdir,
    __NR_mkdirat,
    __NR_rmdir,
    __NR_unlink,
    __NR_unlinkat,
    __NR_rename,
    __NR_renameat,
    __NR_renameat2,
    __NR_link,
    __NR_linkat,
    __NR_symlink,
    __NR_symlinkat,
    __NR_mknod,
    __NR_mknodat,
    __NR_truncate,
    __NR_ftruncate,
    __NR_fallocate,
    __NR_chdir,
    __NR_fchdir,
    __NR_umask,
    __NR_utimensat,
    __NR_futimesat,
    __NR_utimes,
    __NR_sync,
    __NR_fsync,
    __NR_fdatasync,
    __NR_syncfs,
    __NR_sync_file_range,
    __NR_readahead,
    __NR_fadvise64,
    __NR_flock,
    __NR_pidfd_open,
    __NR_pidfd_send_signal,
    __NR_kcmp,
    __NR_setxattr,
    __NR_lsetxattr,
    __NR_fsetxattr,
    __NR_removexattr,
    __NR_lremovexattr,
    __NR_fremovexattr,
    __NR_exit_group,
    __NR_setuid,
    __NR_setgid,
    __NR_setreuid,
    __NR_setregid,
    __NR_setresuid,
    __NR_setresgid,
    __NR_setgroups,
    __NR_setfsuid,
    __NR_setfsgid,
};

// Where each call stands in kCalls, worked out by the compiler.
constexpr size_t kMostNumbers = 512;
constexpr uint8_t kUnknown = 0xff, kNothing = 0xfe;
struct Index {
  uint8_t at[kMostNumbers];
};
constexpr Index make_index() {
  Index index{};
  for (uint8_t& at : index.at) at = kUnknown;
  for (uint16_t nr : kSilent) index.at[nr] = kNothing;
  for (size_t i = 0; i < std::size(kCalls); ++i) index.at[kCalls[i].nr] = static_cast<uint8_t>(i);
  return index;
}
static_assert(std::size(kCalls) < kNothing);
constexpr Index kIndex = make_index();

class Outputs {
 public:
  explicit Outputs(const Visitor& visitor) : visitor_(visitor) {}
  bool ok() const { return ok_; }

  // A null pointer and what lies beyond the address space are the kernel's to refuse.
  void add(long start, uint64_t size) {
    constexpr uint64_t kEnd = 1ull << 47;
    const auto from = static_cast<uint64_t>(start);
    if (from == 0 || size == 0 || from >= kEnd) return;
    const uint64_t end = size > kEnd - from ? kEnd : from + size;
    ok_ = ok_ && visitor_.visit(visitor_.context, {Addr{from}, Addr{end}});
  }

  void vector(uint64_t at, uint64_t count) {
    if (count > 1024) return;  // EINVAL
    iovec pieces[64];
    while (count != 0 && ok_) {
      const uint64_t n = count < std::size(pieces) ? count : std::size(pieces);
      if (!copy_in(pieces, at, n * sizeof(iovec))) return;  // EFAULT
      for (uint64_t i = 0; i < n; ++i) add(reinterpret_cast<long>(pieces[i].iov_base), pieces[i].iov_len);
      at += n * sizeof(iovec);
      count -= n;
    }
  }

  void message(long at) {
    msghdr m{};
    if (!copy_in(&m, static_cast<uint64_t>(at), sizeof(m))) return;
    add(at, sizeof(m));
    add(reinterpret_cast<long>(m.msg_name), m.msg_namelen);
    add(reinterpret_cast<long>(m.msg_control), m.msg_controllen);
    vector(reinterpret_cast<uint64_t>(m.msg_iov), m.msg_iovlen);
  }

  void by_pointer(long start, long length_at) {
    uint32_t length = 0;
    if (!copy_in(&length, static_cast<uint64_t>(length_at), sizeof(length))) return;
    add(length_at, sizeof(length));
    add(start, length);
  }

  void take(const Output& o, const long* args) {
    const long at = args[o.argument];
    const auto of = static_cast<uint64_t>(args[o.of]);
    switch (o.size) {
      case Size::kNone:
        return;
      case Size::kBytes:
        return add(at, o.n);
      case Size::kArgument:
        return add(at, of + o.n < of ? ~0ull : of + o.n);
      case Size::kElements:
        return add(at, (of & 0xffffffff) * o.n);
      case Size::kVector:
        return vector(static_cast<uint64_t>(at), of);
      case Size::kMessage:
        return message(at);
      case Size::kMessages:
        for (uint64_t i = 0; i < (of & 0xffffffff) && i < 1024 && ok_; ++i) {
          message(at + static_cast<long>(i * sizeof(mmsghdr)));
          add(at + static_cast<long>(i * sizeof(mmsghdr)), sizeof(mmsghdr));
        }
        return;
      case Size::kByPointer:
        return by_pointer(at, args[o.of]);
    }
  }

 private:
  const Visitor& visitor_;
  bool ok_ = true;
};

Verdict ioctl_outputs(const long* args, Outputs& out) {
  switch (static_cast<uint32_t>(args[1])) {
    case TCGETS:
      out.add(args[2], 60);
      break;
    case TIOCGWINSZ:
      out.add(args[2], 8);
      break;
    case FIONREAD:
    case TIOCOUTQ:
    case TIOCGPGRP:
    case TIOCGSID:
      out.add(args[2], 4);
      break;
    case TCSETS:
    case TCSETSW:
    case TCSETSF:
    case TIOCSWINSZ:
    case TIOCSPGRP:
    case TCFLSH:
    case FIONBIO:
    case FIOASYNC:
    case FIOCLEX:
    case FIONCLEX:
      break;
    default:
      return Verdict::kWait;
  }
  return Verdict::kPass;
}

Verdict fcntl_outputs(const long* args, Outputs& out) {
  switch (static_cast<int>(args[1])) {
    case F_GETLK:
    case F_OFD_GETLK:
      out.add(args[2], 32);
      break;
    case F_GETOWN_EX:
      out.add(args[2], 8);
      break;
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
    case F_GETFD:
    case F_SETFD:
    case F_GETFL:
    case F_SETFL:
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_SETLK:
    case F_OFD_SETLKW:
    case F_GETOWN:
    case F_SETOWN:
    case F_SETOWN_EX:
    case F_GETSIG:
    case F_SETSIG:
    case F_GETPIPE_SZ:
    case F_SETPIPE_SZ:
    case F_ADD_SEALS:
    case F_GET_SEALS:
      break;
    default:
      return Verdict::kWait;
  }
  return Verdict::kPass;
}

Verdict prctl_outputs(const long* args, Outputs& out) {
  constexpr long kSetVma = 0x53564d41;
  switch (args[0]) {
    case PR_GET_NAME:
      out.add(args[1], 16);
      break;
    case PR_GET_PDEATHSIG:
      out.add(args[1], 4);
      break;
    case PR_SET_NAME:
    case PR_SET_PDEATHSIG:
    case PR_GET_DUMPABLE:
    case PR_SET_TIMERSLACK:
    case PR_GET_TIMERSLACK:
    case PR_GET_NO_NEW_PRIVS:
    case PR_GET_KEEPCAPS:
    case PR_CAPBSET_READ:
    case kSetVma:
      break;
    default:
      return Verdict::kWait;
  }
  return Verdict::kPass;
}

Verdict mremap_outputs(const long* args, Outputs& out) {
  out.add(args[0], static_cast<uint64_t>(args[1]));
  if ((args[3] & MREMAP_FIXED) != 0) out.add(args[4], static_cast<uint64_t>(args[2]));
  return Verdict::kPass;
}

Verdict brk_outputs(const long* args, Outputs& out) {
  const long now = sys::call(__NR_brk, 0L);
  if (args[0] != 0 && args[0] < now)
    out.add(args[0] & ~long{kPageSize - 1}, static_cast<uint64_t>(now - args[0]) + kPageSize);
  return Verdict::kPass;
}

Verdict select_outputs(const long* args, Outputs& out) {
  const auto n = static_cast<uint32_t>(args[0]);
  if (n > 1u << 20) return Verdict::kWait;
  for (int i = 1; i <= 3; ++i) out.add(args[i], (n + 63) / 64 * 8);
  out.add(args[4], 16);
  return Verdict::kPass;
}

Verdict futex_outputs(const long* args, Outputs& out) {
  const auto operation = static_cast<uint32_t>(args[1]);
  // A futex that may be shared is known by its page, which the kernel takes hold of as if to write, even in
  // FUTEX_WAIT.
  if (futex_words::written_by_kernel(operation) || (operation & FUTEX_PRIVATE_FLAG) == 0) {
    out.add(args[0], 4);
    out.add(args[4], 4);
  }
  return Verdict::kPass;
}

Verdict futex_waitv_outputs(const long* args, Outputs& out) {
  futex_waitv waiters[128];  // FUTEX_WAITV_MAX
  const auto count = static_cast<uint32_t>(args[1]);
  if (count > std::size(waiters)) return Verdict::kPass;  // EINVAL
  if (!copy_in(waiters, static_cast<uint64_t>(args[0]), count * sizeof(waiters[0]))) return Verdict::kPass;
  for (uint32_t i = 0; i < count; ++i) out.add(static_cast<long>(waiters[i].uaddr), 4);
  return Verdict::kPass;
}

// Descriptors: ours must stay, unseen.
Verdict descriptor_call(long nr, const long* args) {
  const int ours = window.faults.descriptor;
  if (ours < 0) return Verdict::kPass;
  if (nr == __NR_close_range) {
    const auto first = static_cast<uint32_t>(args[0]), last = static_cast<uint32_t>(args[1]);
    return static_cast<uint32_t>(ours) >= first && static_cast<uint32_t>(ours) <= last ? Verdict::kWait
                                                                                       : Verdict::kPass;
  }
  return static_cast<int>(args[nr == __NR_close ? 0 : 1]) == ours ? Verdict::kWait : Verdict::kPass;
}

Verdict special_outputs(long nr, const long* args, Outputs& out) {
  switch (nr) {
    case __NR_ioctl:
      return ioctl_outputs(args, out);
    case __NR_fcntl:
      return fcntl_outputs(args, out);
    case __NR_prctl:
      return prctl_outputs(args, out);
    case __NR_arch_prctl:
      if (args[0] != 0x1003 && args[0] != 0x1002) return Verdict::kWait;  // ARCH_GET_FS, ARCH_SET_FS
      if (args[0] == 0x1003) out.add(args[1], 8);
      return Verdict::kPass;
    case __NR_mmap:
      if ((args[3] & MAP_FIXED) != 0) out.add(args[0], static_cast<uint64_t>(args[1]));
      return Verdict::kPass;
    case __NR_mincore:
      out.add(args[2], static_cast<uint64_t>(args[1]) / kPageSize + 1);
      return Verdict::kPass;
    case __NR_mremap:
      return mremap_outputs(args, out);
    case __NR_brk:
      return brk_outputs(args, out);
    case __NR_select:
    case __NR_pselect6:
      return select_outputs(args, out);
    case __NR_futex:
      return futex_outputs(args, out);
    case __NR_futex_waitv:
      return futex_waitv_outputs(args, out);
    case __NR_close:
    case __NR_close_range:
    case __NR_dup2:
    case __NR_dup3:
      return descriptor_call(nr, args);
    default:
      return Verdict::kWait;
  }
}

}  // namespace

Verdict each_output(long nr, const long* args, const Visitor& visitor) {
  Outputs out(visitor);
  const uint8_t at = nr >= 0 && nr < static_cast<long>(kMostNumbers) ? kIndex.at[nr] : kUnknown;
  if (at == kNothing) return Verdict::kPass;
  if (at == kUnknown) {
    const Verdict verdict = special_outputs(nr, args, out);
    return out.ok() ? verdict : Verdict::kWait;
  }
  // TCP_ZEROCOPY_RECEIVE names further memory; the length of SO_GET_FILTER is in instructions.
  if (nr == __NR_getsockopt) {
    const int level = static_cast<int>(args[1]), name = static_cast<int>(args[2]);
    if ((level == 6 && name == 35) || (level == SOL_SOCKET && name == SO_GET_FILTER)) return Verdict::kWait;
  }
  for (const Output& o : kCalls[at].out) out.take(o, args);
  return out.ok() ? Verdict::kPass : Verdict::kWait;
}

bool changes_mappings(long nr) {
  switch (nr) {
    case __NR_munmap:
    case __NR_mremap:
    case __NR_mmap:
    case __NR_madvise:
    case __NR_brk:
    case __NR_mprotect:
    case __NR_pkey_mprotect:
      return true;
    default:
      return false;
  }
}

bool mask_of_call(long nr, const long* args, uint64_t* mask) {
  uint64_t at = 0;
  switch (nr) {
    case __NR_rt_sigsuspend:
      at = static_cast<uint64_t>(args[0]);
      break;
    case __NR_ppoll:
      at = static_cast<uint64_t>(args[3]);
      break;
    case __NR_epoll_pwait:
    case __NR_epoll_pwait2:
      at = static_cast<uint64_t>(args[4]);
      break;
    case __NR_pselect6:
      if (args[5] == 0 || !copy_in(&at, static_cast<uint64_t>(args[5]), sizeof(at))) return false;
      break;
    default:
      return false;
  }
  return at != 0 && copy_in(mask, at, sizeof(*mask));
}

}  // namespace ckpt::guard
