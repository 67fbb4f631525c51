// A file descriptor closed at end of scope.
//
// Owner: base. Header only. Callers: any thread of ours. Never: retries close, touches errno.
#pragma once

#include "base/sys.h"

namespace ckpt {

class ScopedFd {
 public:
  ScopedFd() = default;
  explicit ScopedFd(int fd) : fd_(fd) {}
  ScopedFd(ScopedFd&& o) noexcept : fd_(o.release()) {}
  ScopedFd& operator=(ScopedFd&& o) noexcept {
    if (this != &o) reset(o.release());
    return *this;
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  ~ScopedFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() {
    int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1) {
    if (fd_ >= 0) sys::call(__NR_close, fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace ckpt
