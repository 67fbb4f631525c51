// An image written to a descriptor that somebody else reads, front to back: `ckpt cat`.
//
// Owner:     image/write. Callers: one thread. Raw system calls, no allocation.
// Complete:  the last bytes of an image are its trailer: whoever reads the stream knows by them that it is
//            whole.
#pragma once

#include "image/write/backend/stream_backend.h"
#include "image/write/image_output.h"

namespace ckpt {

class ImageStream final : public ImageOutput {
 public:
  // Neither the descriptor nor the name, which is for messages, is owned.
  ImageStream(int fd, const char* name) : fd_(fd), name_(name) {}

  int fd() const override { return fd_; }
  bool direct() const override { return false; }
  const char* path() const override { return name_; }
  FileBackend* only_backend() override { return &backend_; }
  void reserve_until(uint64_t) override {}
  Result<void> publish(FileBackend&, uint64_t, bool) override { return {}; }
  void remove() override {}

 private:
  int fd_;
  const char* name_;
  StreamBackend backend_;
};

}  // namespace ckpt
