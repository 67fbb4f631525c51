#include "image/write/backend/pwritev_backend.h"

#include <errno.h>
#include <sys/uio.h>

#include <algorithm>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

long PwritevBackend::attach(int fd, std::span<std::byte>, uint32_t in_flight) {
  if (in_flight > kMaxInFlight) return -EINVAL;
  fd_ = fd;
  limit_ = in_flight;
  done_count_ = 0;
  return 0;
}

long PwritevBackend::write(const WriteRequest& request) {
  if (done_count_ == limit_) return -EBUSY;
  iovec piece{const_cast<std::byte*>(request.data), request.bytes};
  const std::span<const iovec> pieces =
      request.pieces.empty() ? std::span<const iovec>(&piece, 1) : request.pieces;
  // The kernel takes the offset as two words; on 64 bits the low one holds it all.
  long n = sys::call(__NR_pwritev, fd_, pieces.data(), pieces.size(), request.offset, 0L);
  done_[done_count_++] = {request.slot, n};
  return 0;
}

// The oldest first: what is known to be written can be read back.
WriteResult PwritevBackend::wait() {
  const WriteResult oldest = done_[0];
  std::copy(done_ + 1, done_ + done_count_, done_);
  done_count_--;
  return oldest;
}

long PwritevBackend::sync(int fd) { return sys::call(__NR_fsync, fd); }

void PwritevBackend::detach() { fd_ = -1; }

}  // namespace ckpt
