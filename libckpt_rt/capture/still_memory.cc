#include "libckpt_rt/capture/still_memory.h"

#include <errno.h>

#include "libckpt_rt/core/own_files.h"

namespace ckpt {

Result<void> StillMemory::open() {
  memory_file_.reset(static_cast<int>(own_files::open(own_files::OwnFile::kMemory)));
  const int error = memory_file_.valid() ? 0 : -memory_file_.release();
  // Where it is forbidden only memory that the program itself may not read cannot be read.
  if (error == 0 || error == EACCES || error == EPERM) return {};
  return make_error(ExitCode::kSystem, error, "cannot open /proc/self/mem ({}); mount /proc",
                    errno_name(error));
}

long StillMemory::read(std::byte* to, Addr from, size_t bytes, bool readable) {
  if (readable) {
    iovec local{to, bytes}, remote{from.as<void>(), bytes};
    if (sys::call(__NR_process_vm_readv, sys::gettid(), &local, 1, &remote, 1, 0L) ==
        static_cast<long>(bytes))
      return 0;
  }
  for (size_t done = 0; done < bytes;) {
    long n = sys::call(__NR_pread64, memory_file_.get(), to + done, bytes - done, from.value + done);
    if (n <= 0) return -EFAULT;
    done += static_cast<size_t>(n);
  }
  return 0;
}

size_t StillMemory::read_many(std::span<const iovec> to, std::span<const iovec> from) {
  if (to.empty()) return 0;
  long n =
      sys::call(__NR_process_vm_readv, sys::gettid(), to.data(), to.size(), from.data(), from.size(), 0L);
  size_t pieces = 0;
  for (size_t have = n > 0 ? static_cast<size_t>(n) : 0; pieces < to.size() && have >= to[pieces].iov_len;
       ++pieces) {
    have -= to[pieces].iov_len;
  }
  return pieces;
}

}  // namespace ckpt
