// One process's part of a stream that all processes of a job write (image/format/job_stream.h).
//
// Owner:     image/write. Callers: each member's sink; the coordinator, for the manifest; `ckpt cat`. One
//            thread each. Raw system calls, no allocation.
// Turns:     a frame is longer than what the kernel writes to a pipe as one. `turn` is an eventfd
//            (EFD_SEMAPHORE) of 1 that all share: who has taken it writes one frame, and puts it back. A
//            process that fails within a frame keeps it: the stream is lost with that frame. The others wait
//            for `turn`, and for the end of the reader, which the coordinator brings about. A process that
//            was stopped within a frame keeps it too: where the pipe has room and the turn does not come for
//            kStuckMs, who waits gives up.
#pragma once

#include "image/format/job_stream.h"
#include "image/write/backend/stream_backend.h"
#include "image/write/image_output.h"

namespace ckpt {

// Descriptors; none is owned. turn -1: nobody else writes. watch -1, or what has an event when the stream may
// be wanted no more: a socket that is closed, or (watch_events) what can be read. is_over then tells whether
// it is; nullptr: it is.
struct JobStreamEnds {
  int pipe = -1, turn = -1, watch = -1;
  short watch_events = 0;
  bool (*is_over)(void* context) = nullptr;
  void* context = nullptr;
};

// Frame and bytes. Returns 0 or a negative errno: -EPIPE, nobody reads; -ECANCELED, nobody wants it, or the
// turn does not come.
long write_job_frame(const JobStreamEnds& ends, JobFrame kind, uint32_t entry, uint64_t bytes,
                     const std::byte* data = nullptr);
long write_job_head(const JobStreamEnds& ends);

class JobStreamOutput final : public ImageOutput {
 public:
  // name: for messages; must outlive this.
  void open(const JobStreamEnds& ends, uint32_t entry, const char* name);

  int fd() const override { return backend_.ends_.pipe; }
  bool direct() const override { return false; }
  const char* path() const override { return name_; }
  FileBackend* only_backend() override { return &backend_; }
  void reserve_until(uint64_t) override {}
  // All is in the stream: whether it is durable only its reader knows.
  Result<void> publish(FileBackend& backend, uint64_t bytes, bool replace) override;
  void remove() override {}
  Error explain(const Error& error) override;

 private:
  class Backend final : public StreamBackend {
   public:
    JobStreamEnds ends_;
    uint32_t entry_ = 0;

   private:
    long put(const std::byte* data, uint32_t bytes) override;
  };
  Backend backend_;
  const char* name_ = "";
};

}  // namespace ckpt
