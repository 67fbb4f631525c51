// Which system calls SmallKernel answers, and the way to the real kernel for all others.
#include <asm/unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>

#include <atomic>
#include <cstring>
#include <string_view>

#include "base/sys.h"
#include "tests/protect_model/fibers.h"
#include "tests/protect_model/small_kernel.h"

namespace ckpt::test {
namespace {

SmallKernel* small_kernel = nullptr;

long real_call(long nr, const long* w) {
  long result;
  register long r10 asm("r10") = w[3];
  register long r8 asm("r8") = w[4];
  register long r9 asm("r9") = w[5];
  asm volatile("syscall"
               : "=a"(result)
               : "a"(nr), "D"(w[0]), "S"(w[1]), "d"(w[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

AddrRange range_at(long start, long bytes) {
  const Addr first{static_cast<uint64_t>(start)};
  return {first, first + static_cast<uint64_t>(bytes)};
}

}  // namespace

SmallKernel::SmallKernel(Version version) : version_(version) { small_kernel = this; }
SmallKernel::~SmallKernel() { small_kernel = nullptr; }

// process_vm_readv and _writev, of which one side is the program's memory.
long SmallKernel::copy(const long* args, bool to_remote) {
  const auto* local = reinterpret_cast<const iovec*>(args[1]);
  const auto* remote = reinterpret_cast<const iovec*>(args[3]);
  const iovec *from = to_remote ? local : remote, *to = to_remote ? remote : local;
  const long pieces = to_remote ? args[2] : args[4];
  size_t bytes = 0, done = 0, to_used = 0;
  for (long i = 0; i < pieces; ++i) bytes += from[i].iov_len;
  for (long i = 0; i < pieces; ++i) {
    for (size_t at = 0; at < from[i].iov_len; at += kPageSize) {
      // The call takes its time.
      if (done == bytes / 2 / kPageSize * kPageSize && done != 0) before_call();
      if (to_used == to->iov_len) {
        ++to;
        to_used = 0;
      }
      if (!read_page(Addr::of(from[i].iov_base) + at, static_cast<std::byte*>(to->iov_base) + to_used))
        return done == 0 ? -EFAULT : static_cast<long>(done);
      to_used += kPageSize;
      done += kPageSize;
    }
  }
  return static_cast<long>(done);
}

long SmallKernel::call(long nr, const long* w) {
  switch (nr) {
    case __NR_userfaultfd: {
      const long args[6] = {0, w[0] & O_CLOEXEC};
      const long fd = real_call(__NR_eventfd2, args);
      faults_.insert(static_cast<int>(fd));
      return fd;
    }
    case __NR_fcntl:
    case __NR_pidfd_getfd: {
      const long fd = real_call(nr, w);
      if (fd >= 0 && is_userfaultfd(nr == __NR_fcntl ? w[0] : w[1])) faults_.insert(static_cast<int>(fd));
      return fd;
    }
    case __NR_close:
      if (faults_.erase(static_cast<int>(w[0])) != 0 && faults_.empty()) end_userfaultfd();
      return real_call(nr, w);
    case __NR_openat: {
      const long fd = real_call(nr, w);
      const std::string_view path(reinterpret_cast<const char*>(w[1]));
      if (path.ends_with("/mem")) memory_ = static_cast<int>(fd);
      if (path.ends_with("/pagemap")) pagemap_ = static_cast<int>(fd);
      return fd;
    }
    case __NR_sysinfo: {
      // No memory goes to swap.
      const long result = real_call(nr, w);
      auto& memory = *reinterpret_cast<struct sysinfo*>(w[0]);
      memory.totalswap = memory.freeswap = 0;
      return result;
    }
    case __NR_futex: {
      const int what = static_cast<int>(w[1]) & FUTEX_CMD_MASK;
      if (what != FUTEX_WAIT && what != FUTEX_WAIT_BITSET) return 0;
      before_call();
      const auto& word = *reinterpret_cast<const std::atomic<uint32_t>*>(w[0]);
      while (word.load() == static_cast<uint32_t>(w[2])) Fiber::suspend();
      return 0;
    }
    case __NR_sched_yield:
      Fiber::suspend();
      return 0;
    case __NR_poll:
      before_call();
      return poll(w[0]);
    case __NR_ioctl:
      if (is_userfaultfd(w[0])) {
        before_call();
        return control_faults(static_cast<unsigned long>(w[1]), w[2]);
      }
      if (w[0] != pagemap_) return real_call(nr, w);
      before_call();
      return scan(w[2]);
    case __NR_read:
      if (!is_userfaultfd(w[0])) return real_call(nr, w);
      before_call();
      return read_messages(w[1], w[2]);
    case __NR_pread64:
      before_call();
      if (w[0] == pagemap_) return read_pagemap(w[1], w[2], w[3]);
      if (w[0] != memory_) return real_call(nr, w);
      return read_page(Addr{static_cast<uint64_t>(w[3])}, reinterpret_cast<std::byte*>(w[1]))
                 ? static_cast<long>(kPageSize)
                 : -EIO;
    case __NR_process_vm_readv:
    case __NR_process_vm_writev:
      before_call();
      return copy(w, nr == __NR_process_vm_writev);
    case __NR_msync: {
      if (!is_here(Addr{static_cast<uint64_t>(w[0])})) return real_call(nr, w);
      before_call();
      const AddrRange range = range_at(w[0], w[1]);
      for (size_t i = index(range.start); i < index(range.end); ++i) {
        if (pages_[i].mapping == 0) return -ENOMEM;
      }
      return 0;
    }
    case __NR_mprotect:
      if (!is_here(Addr{static_cast<uint64_t>(w[0])})) return real_call(nr, w);
      before_call();
      return change_protection(range_at(w[0], w[1]), (w[2] & PROT_WRITE) != 0);
    default:
      return real_call(nr, w);
  }
}

}  // namespace ckpt::test

namespace ckpt::sys {

long call6(long nr, long a, long b, long c, long d, long e, long f) {
  const long args[6] = {a, b, c, d, e, f};
  return test::small_kernel != nullptr ? test::small_kernel->call(nr, args) : test::real_call(nr, args);
}

}  // namespace ckpt::sys
