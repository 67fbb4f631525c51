#include "base/machine/kernel_caps.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/io_uring.h>
#include <linux/kcmp.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/machine/pagemap_scan.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/units.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr int kNewTime = 0x00000080;  // CLONE_NEWTIME, Linux 5.6

ProbeResult result_of(long raw) { return {sys::failed(raw) ? static_cast<int>(-raw) : 0}; }

// Runs `body` in a child; its return value, an errno or 0, comes back as exit status. A child that
// was killed (seccomp) counts as EPERM.
template <typename Body>
ProbeResult in_child(Body body) {
  pid_t child = fork();
  if (child < 0) return {errno};
  if (child == 0) _exit(body());
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return {errno};
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : EPERM};
}

int write_file(const char* path, const char* text) {
  ScopedFd fd(open(path, O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return errno;
  size_t length = strlen(text);
  return write(fd.get(), text, length) == static_cast<ssize_t>(length) ? 0 : errno;
}

int enter_user_namespace() {
  uid_t uid = geteuid();
  gid_t gid = getegid();
  if (unshare(CLONE_NEWUSER) != 0) return errno;
  char map[64];
  *fmt::format_to_n(map, sizeof(map) - 1, "{} {} 1\n", uid, uid).out = '\0';
  if (int e = write_file("/proc/self/uid_map", map)) return e;
  // Without privilege gid_map may only be written once setgroups is given up (Linux 3.19).
  if (int e = write_file("/proc/self/setgroups", "deny")) return e;
  *fmt::format_to_n(map, sizeof(map) - 1, "{} {} 1\n", gid, gid).out = '\0';
  return write_file("/proc/self/gid_map", map);
}

// Enters the namespaces of `flags`, through a new user namespace when rights are missing.
int enter_namespaces(int flags) {
  if (unshare(flags) == 0) return 0;
  if (errno != EPERM) return errno;
  if (int e = enter_user_namespace()) return e;
  return unshare(flags) == 0 ? 0 : errno;
}

// A child with exactly this tid, which exits at once. 0 or errno.
int clone_with_tid(pid_t tid) {
  clone_args args{};
  args.exit_signal = SIGCHLD;
  args.set_tid = reinterpret_cast<uint64_t>(&tid);
  args.set_tid_size = 1;
  long child = sys::call(__NR_clone3, &args, sizeof(args));
  if (child == 0) sys::call(__NR_exit_group, 0);
  if (sys::failed(child)) return static_cast<int>(-child);
  waitpid(static_cast<pid_t>(child), nullptr, 0);
  return child == tid ? 0 : EPROTO;
}

// The present mm description, as PR_SET_MM_MAP wants it (proc(5), /proc/PID/stat fields 26 to 51).
bool read_mm_map(prctl_mm_map* map) {
  char text[2048] = {};
  ScopedFd fd(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || read(fd.get(), text, sizeof(text) - 1) <= 0) return false;
  char* at = strrchr(text, ')');
  if (at == nullptr) return false;
  uint64_t field[53] = {};
  int i = 3;
  char* save = nullptr;
  for (char* word = strtok_r(at + 1, " ", &save); word != nullptr && i < 53;
       word = strtok_r(nullptr, " ", &save)) {
    field[i++] = strtoull(word, nullptr, 10);
  }
  if (i < 52) return false;
  *map = {};
  map->start_code = field[26];
  map->end_code = field[27];
  map->start_stack = field[28];
  map->start_data = field[45];
  map->end_data = field[46];
  map->start_brk = field[47];
  map->brk = reinterpret_cast<uint64_t>(sbrk(0));
  map->arg_start = field[48];
  map->arg_end = field[49];
  map->env_start = field[50];
  map->env_end = field[51];
  map->exe_fd = static_cast<uint32_t>(-1);
  return true;
}

int set_mm_map(bool with_exe) {
  prctl_mm_map map;
  if (!read_mm_map(&map)) return EIO;
  ScopedFd exe;
  if (with_exe) {
    exe.reset(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    if (!exe.valid()) return errno;
    map.exe_fd = static_cast<uint32_t>(exe.get());
  }
  if (prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0) == 0) return 0;
  // The right to change the exe link is checked before "the old executable is still mapped".
  return with_exe && errno == EBUSY ? 0 : errno;
}

}  // namespace

ProbeResult probe_pagemap_scan() {
  ScopedFd fd(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return {errno};
  void* page = mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return {errno};
  *static_cast<volatile char*>(page) = 1;
  PageRegion region{};
  PagemapScanArg arg{};
  arg.size = sizeof(arg);
  arg.start = reinterpret_cast<uint64_t>(page);
  arg.end = arg.start + kPageSize;
  arg.vec = reinterpret_cast<uint64_t>(&region);
  arg.vec_len = 1;
  arg.category_mask = arg.return_mask = kPageIsPresent;
  long found = sys::call(__NR_ioctl, fd.get(), kPagemapScan, &arg);
  munmap(page, kPageSize);
  if (sys::failed(found)) return result_of(found);
  return {found == 1 && region.start == arg.start ? 0 : EPROTO};
}

ProbeResult probe_io_uring() {
  io_uring_params params{};
  ScopedFd ring;
  long fd = sys::call(__NR_io_uring_setup, 2, &params);
  if (!sys::failed(fd)) ring.reset(static_cast<int>(fd));
  return result_of(fd);
}

ProbeResult probe_user_namespace() { return in_child(enter_user_namespace); }

ProbeResult probe_pid_namespace() {
  return in_child([] {
    if (int e = enter_namespaces(CLONE_NEWPID)) return e;
    return in_child([] { return sys::getpid() == 1 ? 0 : EPROTO; }).error;
  });
}

ProbeResult probe_time_namespace() {
  return in_child([] {
    if (int e = enter_namespaces(kNewTime)) return e;
    return write_file("/proc/self/timens_offsets", "monotonic 5 0\n");
  });
}

ProbeResult probe_set_tid() {
  pid_t tid = fork();
  if (tid < 0) return {errno};
  if (tid == 0) _exit(0);
  waitpid(tid, nullptr, 0);
  int e = clone_with_tid(tid);
  // Somebody else got this number meanwhile; the right was checked before that.
  return {e == EEXIST ? 0 : e};
}

ProbeResult probe_set_tid_in_namespace() {
  return in_child([] {
    if (int e = enter_namespaces(CLONE_NEWPID)) return e;
    // The first child becomes pid 1 of the namespace; only its children can have any number.
    return in_child([] { return clone_with_tid(4242); }).error;
  });
}

ProbeResult probe_pidfd_getfd() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {errno};
  ScopedFd reader(ends[0]), writer(ends[1]);
  pid_t child = fork();
  if (child < 0) return {errno};
  if (child == 0) {
    writer.reset();
    char byte;
    _exit(read(reader.get(), &byte, 1) == 0 ? 0 : 1);
  }
  long taken = sys::call(__NR_pidfd_open, child, 0);
  if (!sys::failed(taken)) {
    ScopedFd pidfd(static_cast<int>(taken));
    taken = sys::call(__NR_pidfd_getfd, pidfd.get(), reader.get(), 0);
    if (!sys::failed(taken)) ScopedFd(static_cast<int>(taken)).reset();
  }
  writer.reset();
  waitpid(child, nullptr, 0);
  return result_of(taken);
}

ProbeResult probe_kcmp() {
  ScopedFd a(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!a.valid()) return {errno};
  ScopedFd b(fcntl(a.get(), F_DUPFD_CLOEXEC, 0));
  if (!b.valid()) return {errno};
  long same = sys::call(__NR_kcmp, sys::getpid(), sys::getpid(), KCMP_FILE, a.get(), b.get());
  if (sys::failed(same)) return result_of(same);
  return {same == 0 ? 0 : EPROTO};
}

ProbeResult probe_syscall_dispatch() {
  constexpr int kSetDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH of linux/prctl.h
  constexpr long kOff = 0, kOn = 1;
  char selector = 0;  // SYSCALL_DISPATCH_FILTER_ALLOW
  const long r = sys::call(__NR_prctl, kSetDispatch, kOn, 0L, 0L, &selector);
  if (r == 0) sys::call(__NR_prctl, kSetDispatch, kOff, 0L, 0L, 0L);
  return result_of(r);
}

ProbeResult probe_set_mm_map() {
  return in_child([] { return set_mm_map(false); });
}

ProbeResult probe_set_exe() {
  return in_child([] { return set_mm_map(true); });
}

ProbeResult probe_ptrace_child() {
  pid_t child = fork();
  if (child < 0) return {errno};
  if (child == 0) {
    pause();
    _exit(0);
  }
  int error = ptrace(PTRACE_SEIZE, child, nullptr, nullptr) == 0 ? 0 : errno;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return {error};
}

ProbeResult probe_direct_io(const char* directory) {
  ScopedFd fd(open(directory, O_TMPFILE | O_DIRECT | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    // No nameless files on this file system: one with a name, removed at once.
    char path[4096];
    *fmt::format_to_n(path, sizeof(path) - 1, "{}/.ckpt-probe.XXXXXX", directory).out = '\0';
    fd.reset(mkostemp(path, O_DIRECT | O_CLOEXEC));
    if (fd.valid()) unlink(path);
  }
  if (!fd.valid()) return {errno};
  alignas(kPageSize) static const char kPage[kPageSize] = {};
  return {pwrite(fd.get(), kPage, sizeof(kPage), 0) == static_cast<ssize_t>(sizeof(kPage)) ? 0 : errno};
}

KernelCaps probe_kernel_caps() {
  KernelCaps caps;
  caps.userfaultfd = probe_userfaultfd();
  caps.pagemap_scan = probe_pagemap_scan();
  caps.io_uring = probe_io_uring();
  caps.user_namespace = probe_user_namespace();
  caps.pid_namespace = probe_pid_namespace();
  caps.time_namespace = probe_time_namespace();
  caps.set_tid = probe_set_tid();
  caps.set_tid_in_namespace = probe_set_tid_in_namespace();
  caps.pidfd_getfd = probe_pidfd_getfd();
  caps.kcmp = probe_kcmp();
  caps.syscall_dispatch = probe_syscall_dispatch();
  caps.set_mm_map = probe_set_mm_map();
  caps.set_exe = probe_set_exe();
  caps.ptrace_child = probe_ptrace_child();
  return caps;
}

}  // namespace ckpt
