#include "libckpt_rt/capture/advice/still_memory.h"

#include <errno.h>
#include <fcntl.h>
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/process/own_files.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> StillMemory::open() {
  own_side_ = !is_filtered();
  memory_file_.reset(static_cast<int>(own_files::open(own_files::OwnFile::kMemory)));
  const int error = memory_file_.valid() ? 0 : -memory_file_.release();
  // Where it is forbidden only memory that the program itself may not read cannot be read.
  if (error == 0 || error == EACCES || error == EPERM) return {};
  return cannot_open("/proc/self/mem", error);
}

long StillMemory::read(std::byte* to, Addr from, size_t bytes, bool readable) {
  if (readable) {
    const iovec into{to, bytes}, of{from.as<void>(), bytes};
    if (copy({&into, 1}, {&of, 1}) == static_cast<long>(bytes)) return 0;
  }
  for (size_t done = 0; done < bytes;) {
    long n = sys::call(__NR_pread64, memory_file_.get(), to + done, bytes - done, from.value + done);
    if (n <= 0) return -EFAULT;
    done += static_cast<size_t>(n);
  }
  return 0;
}

long StillMemory::copy(std::span<const iovec> to, std::span<const iovec> from) const {
  if (own_side_) {
    const long n =
        sys::call(__NR_process_vm_writev, sys::gettid(), from.data(), from.size(), to.data(), to.size(), 0L);
    // Not all of it: what a protection key keeps from the caller's own side, the other call may read.
    size_t all = 0;
    for (const iovec& piece : to) all += piece.iov_len;
    if (n == static_cast<long>(all)) return n;
  }
  return sys::call(__NR_process_vm_readv, sys::gettid(), to.data(), to.size(), from.data(), from.size(), 0L);
}

size_t StillMemory::read_many(std::span<const iovec> to, std::span<const iovec> from) const {
  if (to.empty()) return 0;
  const long n = copy(to, from);
  size_t pieces = 0;
  for (size_t have = n > 0 ? static_cast<size_t>(n) : 0; pieces < to.size() && have >= to[pieces].iov_len;
       ++pieces) {
    have -= to[pieces].iov_len;
  }
  return pieces;
}

}  // namespace ckpt
