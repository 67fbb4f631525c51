// Several reads past the page cache at once, by one thread, with one system call (io_submit(2)). Read one
// after the other, parts of a file that do not follow each other would cost the disk's latency each.
//
// Owner:     restart. Each object is one thread's.
// Callers:   StoredBytes.
// Never:     returns while the kernel may still write into a buffer.
// Native asynchronous reading, not io_uring: four system calls, one small mapping, and seldom forbidden.
#pragma once

#include <linux/aio_abi.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

// offset, out.size() and out.data(): multiples of 4096.
struct StoredRead {
  uint64_t offset;
  std::span<std::byte> out;
  bool done = false;
};

class DirectReads {
 public:
  static constexpr size_t kMost = 64;  // at once

  DirectReads() = default;
  ~DirectReads();
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;

  // Sets `done` of the reads that were complete; the caller reads the others in another way. fd: opened with
  // O_DIRECT.
  void read(int fd, std::span<StoredRead* const> reads);

 private:
  void read_some(int fd, std::span<StoredRead* const> reads);
  bool wait_for(size_t count, std::span<StoredRead* const> reads);
  void give_up();

  aio_context_t context_ = 0;
  bool refused_ = false;
};

}  // namespace ckpt
