// The reference back end: each write is one pwritev(2), done when write() returns.
//
// Owner:     image/write. Callers: the sink's thread, in the victim. No allocation.
#pragma once

#include "image/write/backend/file_backend.h"

namespace ckpt {

class PwritevBackend final : public FileBackend {
 public:
  long attach(int fd, std::span<std::byte> staging, uint32_t in_flight) override;
  long write(const WriteRequest& request) override;
  WriteResult wait() override;
  long sync(int fd) override;
  void detach() override;
  const char* name() const override { return "pwritev"; }
  bool gathers() const override { return true; }

 private:
  static constexpr uint32_t kMaxInFlight = 64;
  int fd_ = -1;
  uint32_t limit_ = 0;
  uint32_t done_count_ = 0;
  WriteResult done_[kMaxInFlight];
};

}  // namespace ckpt
