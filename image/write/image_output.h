// Where the bytes of one image go: a file of a directory (image_file.h), or a stream (image_stream.h, and
// CKPT_TO's command in libckpt_rt/checkpoint/image/image_command.h).
//
// Owner:     image/write. Callers: the sink's thread only, in the victim. Raw system calls, no allocation.
#pragma once

#include "base/result.h"
#include "image/write/backend/file_backend.h"

namespace ckpt {

class ImageOutput {
 public:
  virtual int fd() const = 0;
  virtual bool direct() const = 0;  // O_DIRECT is in effect
  // A file in memory: a write is a copy, and done when the call returns.
  virtual bool in_memory() const { return false; }
  virtual const char* path() const = 0;  // for messages
  // The only back end that can write there; nullptr: any.
  virtual FileBackend* only_backend() { return nullptr; }
  // Blocks for the bytes ahead of the writes. Best effort.
  virtual void reserve_until(uint64_t bytes) = 0;
  // All `bytes` have been written: makes them durable, and what was unfinished an image.
  virtual Result<void> publish(FileBackend& backend, uint64_t bytes, bool replace) = 0;
  // Gives up what has not been published. Does nothing after publish() succeeded.
  virtual void remove() = 0;
  // A better word for an error of writing, where there is one.
  virtual Error explain(const Error& error) { return error; }

 protected:
  ~ImageOutput() = default;
};

}  // namespace ckpt
