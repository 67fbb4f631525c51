// Writes to a pipe, or whatever cannot seek: each write is made at once and in full.
//
// Owner:     image/write. Callers: the sink's thread, in the victim. No allocation.
// Contract:  the caller blocks SIGPIPE; writes come in the order of their offsets.
#pragma once

#include "image/write/backend/file_backend.h"

namespace ckpt {

class StreamBackend : public FileBackend {
 public:
  long attach(int fd, std::span<std::byte> staging, uint32_t in_flight) override;
  long write(const WriteRequest& request) override;
  WriteResult wait() override;
  // There is nothing to make durable: the reader of the stream sees to that.
  long sync(int) override { return 0; }
  void detach() override { fd_ = -1; }
  const char* name() const override { return "stream"; }

 protected:
  // All of it. Returns 0 or a negative errno.
  virtual long put(const std::byte* data, uint32_t bytes);

 private:
  static constexpr uint32_t kMaxInFlight = 64;
  int fd_ = -1;
  uint64_t next_ = 0;
  uint32_t limit_ = 0, done_count_ = 0;
  WriteResult done_[kMaxInFlight];
};

}  // namespace ckpt
