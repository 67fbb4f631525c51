// What the kernel writes to in each system call whose arguments say it in a way common to many: one line a
// call.
//
// Owner: libckpt_rt. Header only. Callers: guard/calls.cc. Source: see calls.h.
#pragma once

#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace ckpt::guard {

enum class OutputSize : uint8_t {
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
  OutputSize size = OutputSize::kNone;
  uint8_t of = 0;
  uint16_t n = 0;
};

struct Call {
  uint16_t nr;
  Output out[4];
};

constexpr Output bytes(uint8_t argument, uint16_t n) { return {argument, OutputSize::kBytes, 0, n}; }
constexpr Output by(uint8_t argument, uint8_t of) { return {argument, OutputSize::kArgument, of, 0}; }
constexpr Output each(uint8_t argument, uint8_t of, uint16_t n) {
  return {argument, OutputSize::kElements, of, n};
}
constexpr Output vec(uint8_t argument, uint8_t of) { return {argument, OutputSize::kVector, of, 0}; }
constexpr Output address(uint8_t argument, uint8_t of) { return {argument, OutputSize::kByPointer, of, 0}; }

// x86-64. Calls that write nothing to the caller's memory are in kSilent.
inline constexpr Call kCalls[] = {
    {__NR_read, {by(1, 2)}},
    {__NR_pread64, {by(1, 2)}},
    {__NR_readv, {vec(1, 2)}},
    {__NR_preadv, {vec(1, 2)}},
    {__NR_preadv2, {vec(1, 2)}},
    {__NR_process_vm_readv, {vec(1, 2)}},
    {__NR_recvfrom, {by(1, 2), address(4, 5)}},
    {__NR_recvmsg, {{1, OutputSize::kMessage, 0, 0}}},
    {__NR_recvmmsg, {{1, OutputSize::kMessages, 2, 0}, bytes(4, 16)}},
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
    {__NR_msgrcv, {{1, OutputSize::kArgument, 2, 8}}},
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

inline constexpr uint16_t kSilent[] = {
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
inline constexpr size_t kMostNumbers = 512;
inline constexpr uint8_t kUnknown = 0xff, kNothing = 0xfe;
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
inline constexpr Index kIndex = make_index();

}  // namespace ckpt::guard
