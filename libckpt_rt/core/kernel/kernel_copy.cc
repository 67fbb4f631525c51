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
  // process_vm_writev(2) reads as the caller itself would: for what a protection key keeps from the caller,
  // the other call is made.
  if (buffers_.start <= into && into + bytes <= buffers_.end &&
      make(__NR_process_vm_writev, from.as(), into, bytes)) {
    return true;
  }
  return read(to, from, bytes);
}

bool KernelCopy::copy(std::span<const CopyPiece> pieces) const {
  constexpr size_t kMost = 64;
  if (pieces.empty() || pieces.size() > kMost) return false;
  // Neighbours become one on each side: the kernel takes hold of each piece of the buffers alone.
  iovec local[kMost], remote[kMost];
  size_t locals = 0, remotes = 0, bytes = 0;
  auto add = [](iovec* list, size_t& count, uint64_t start, size_t length) {
    if (count != 0) {
      iovec& last = list[count - 1];
      if (reinterpret_cast<uint64_t>(last.iov_base) + last.iov_len == start) {
        last.iov_len += length;
        return;
      }
    }
    list[count++] = {reinterpret_cast<void*>(start), length};
  };
  for (const CopyPiece& piece : pieces) {
    const Addr into = Addr::of(piece.to);
    if (into < buffers_.start || buffers_.end < into + piece.bytes) return false;
    add(local, locals, piece.from.value, piece.bytes);
    add(remote, remotes, into.value, piece.bytes);
    bytes += piece.bytes;
  }
  return sys::call(__NR_process_vm_writev, sys::gettid(), local, locals, remote, remotes, 0L) ==
         static_cast<long>(bytes);
}

}  // namespace ckpt
