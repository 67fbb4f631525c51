// How bytes get from a staging buffer to the file. The seam where tests tear, shorten and fail writes.
//
// Owner:     image/write. One backend serves one image at a time.
// Callers:   the sink's thread only, in the victim: no allocation, no libc state, no exceptions.
// Contract:  write() starts a write and may return before it is done; wait() gives each started
//            write back exactly once, in any order. A result may be short: the WriteQueue writes
//            the rest. data, bytes and offset are multiples of 4096, and so is each of the pieces.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

struct WriteRequest {
  uint32_t slot;          // of the staging memory; comes back in WriteResult
  const std::byte* data;  // inside the staging memory given to attach()
  uint32_t bytes;
  uint64_t offset;
  // Not empty: the bytes lie in these, one after another, and not at `data`. Only where gathers().
  std::span<const iovec> pieces = {};
};

struct WriteResult {
  uint32_t slot;
  long result;  // bytes written, or -errno
};

class FileBackend {
 public:
  // The file, the memory that will be written from, and how many writes may be in flight. 0 or -errno.
  virtual long attach(int fd, std::span<std::byte> staging, uint32_t in_flight) = 0;
  // 0 or -errno when the write could not even be started.
  virtual long write(const WriteRequest& request) = 0;
  // Blocks until one of the started writes is done. Called only while one is.
  virtual WriteResult wait() = 0;
  // Makes a file or directory durable: 0 or -errno. No write is in flight.
  virtual long sync(int fd) = 0;
  // Undoes attach(). No write is in flight.
  virtual void detach() = 0;
  virtual const char* name() const = 0;
  // Started writes go on while the caller does something else.
  virtual bool overlaps() const { return false; }
  // Takes requests that consist of pieces. The list, too, stays where it is until the write is done.
  virtual bool gathers() const { return false; }

 protected:
  ~FileBackend() = default;
};

}  // namespace ckpt
