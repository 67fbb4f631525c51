// The fast back end: writes by io_uring, several in flight while the next chunk is gathered.
//
// Owner:     image/write. Callers: the sink's thread only, in the victim. No allocation: the ring is made in
//            memory of ours, and of liburing only what stays clear of malloc, errno and TLS is called
//            (it reads the stack protector's word at %fs:0x28, which any thread block has).
// The file:  is not registered: a process that is killed would hold it, locked, until the kernel takes the
//            ring apart.
// Threads:   none. Every write carries RWF_NOWAIT: a write that the kernel cannot start at once comes back
//            with EAGAIN and is done here by pwritev, where io_uring would otherwise start a worker thread,
//            which the program could see among its own and which no signal can stop.
#pragma once

#include "base/units.h"
#include "image/write/backend/file_backend.h"
#include "image/write/backend/own_liburing.h"
#include "image/write/backend/ring_guard.h"

namespace ckpt {

class UringBackend final : public FileBackend {
 public:
  // Held while the ring is made.
  void use(const RingGuard* guard) { guard_ = guard; }
  // -errno where the kernel, a sysctl or a filter forbids io_uring, or it lacks what is needed.
  long attach(int fd, std::span<std::byte> staging, uint32_t in_flight) override;
  long write(const WriteRequest& request) override;
  WriteResult wait() override;
  long sync(int fd) override;
  void detach() override;
  const char* name() const override { return "io_uring"; }
  bool overlaps() const override { return true; }
  bool gathers() const override { return true; }

  // The two parts of the ring ("anon_inode:[io_uring]" before Linux 6.5), empty when not attached: they are
  // ours, not the program's.
  AddrRange ring_range() const;
  AddrRange entries_range() const;
  // Writes that could not be started at once and were done by pwritev.
  uint64_t done_here() const { return done_here_; }

 private:
  static constexpr uint32_t kMaxInFlight = 64;
  long write_here(const WriteRequest& request);
  void finish(uint32_t slot, long result) { done_[done_count_++] = {slot, result}; }

  long make_ring(uint32_t in_flight);
  const RingGuard* guard_ = nullptr;
  io_uring ring_;
  void register_staging();
  bool attached_ = false;
  // The staging memory is pinned once, not for each write, if it is written from often: to pin it touches all
  // of it, and most of what is written lies elsewhere, or is little.
  std::span<std::byte> staging_;
  bool registered_ = false;
  uint32_t from_staging_ = 0;
  int fd_ = -1;
  uint32_t limit_ = 0;
  uint64_t done_here_ = 0;
  WriteRequest started_[kMaxInFlight];  // by slot
  uint32_t done_count_ = 0;
  WriteResult done_[kMaxInFlight];
};

}  // namespace ckpt
