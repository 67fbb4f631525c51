#include "libckpt_rt/guard/special_calls.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "base/sys.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::guard {

namespace {

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
    // In a table of the thread's own ours would stay.
    if ((args[2] & CLOSE_RANGE_UNSHARE) != 0) return Verdict::kWait;
    const auto first = static_cast<uint32_t>(args[0]), last = static_cast<uint32_t>(args[1]);
    return static_cast<uint32_t>(ours) >= first && static_cast<uint32_t>(ours) <= last ? Verdict::kWait
                                                                                       : Verdict::kPass;
  }
  return static_cast<int>(args[nr == __NR_close ? 0 : 1]) == ours ? Verdict::kWait : Verdict::kPass;
}

}  // namespace

bool writes_to_proc(long nr, const long* args) {
  switch (nr) {
    case __NR_write:
    case __NR_writev:
    case __NR_pwrite64:
    case __NR_pwritev:
    case __NR_pwritev2:
      break;
    default:
      return false;
  }
  // Most files are told apart by fstat(2), which every filter of system calls lets through.
  struct stat st;
  const int fd = static_cast<int>(args[0]);
  if (sys::call(__NR_fstat, fd, &st) != 0) return false;
  if (!S_ISREG(st.st_mode) || st.st_size != 0 || major(st.st_dev) != 0) return false;
  constexpr long kProc = 0x9fa0;  // PROC_SUPER_MAGIC
  struct statfs fs;
  return sys::call(__NR_fstatfs, fd, &fs) == 0 && fs.f_type == kProc;
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

}  // namespace ckpt::guard
