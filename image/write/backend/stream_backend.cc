#include "image/write/backend/stream_backend.h"

#include <errno.h>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

long StreamBackend::attach(int fd, std::span<std::byte>, uint32_t in_flight) {
  if (in_flight > kMaxInFlight) return -EINVAL;
  fd_ = fd;
  limit_ = in_flight;
  done_count_ = 0;
  next_ = 0;
  return 0;
}

long StreamBackend::write(const WriteRequest& request) {
  if (done_count_ == limit_) return -EBUSY;
  if (request.offset != next_) return -ESPIPE;
  const long failed = put(request.data, request.bytes);
  next_ += request.bytes;
  done_[done_count_++] = {request.slot, failed != 0 ? failed : long{request.bytes}};
  return 0;
}

long StreamBackend::put(const std::byte* data, uint32_t bytes) {
  for (uint32_t done = 0; done < bytes;) {
    const long n = sys::call(__NR_write, fd_, data + done, bytes - done);
    if (n == -EINTR) continue;
    if (n <= 0) return n == 0 ? -EIO : n;
    done += static_cast<uint32_t>(n);
  }
  return 0;
}

WriteResult StreamBackend::wait() { return done_[--done_count_]; }

}  // namespace ckpt
