#include "libckpt_rt/core/kernel/kernel_copy.h"

#include <sys/uio.h>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

bool make(long call, std::byte* own, Addr other, size_t bytes) {
  iovec local{own, bytes}, remote{other.as<void>(), bytes};
  return sys::call(call, sys::gettid(), &local, 1, &remote, 1, 0L) == static_cast<long>(bytes);
}

}  // namespace

bool KernelCopy::read(std::byte* to, Addr from, size_t bytes) {
  return make(__NR_process_vm_readv, to, from, bytes);
}

bool KernelCopy::copy(std::byte* to, Addr from, size_t bytes) const {
  const Addr into = Addr::of(to);
  // It reads as the caller itself would: for what a protection key keeps from that the other call is made.
  if (buffers_.start <= into && into + bytes <= buffers_.end &&
      make(__NR_process_vm_writev, from.as(), into, bytes)) {
    return true;
  }
  return read(to, from, bytes);
}

}  // namespace ckpt
