// The bytes of an image, in order, on their way to the output: by the write queue as they are, or through
// encryption. Knows the offset of what comes next, and how long the device was waited for.
//
// Owner:     image/write (DirectSink). Callers: the sink's thread only, in the victim. Memory from the arena
//            of start(). Never: looks into what it writes.
//
//   acquire() -> a slot; its buffer is filled -> write() or discard()
// With a key there is one buffer, free again when it has been encrypted: the queue's slots are the sealer's.
#pragma once

#include "image/write/backend/pwritev_backend.h"
#include "image/write/backend/uring_backend.h"
#include "image/write/backend/write_queue.h"
#include "image/write/sink/image_sealer.h"
#include "image/write/sink_options.h"

namespace ckpt {

class SlotWriter {
 public:
  // options and output must outlive the image.
  Result<void> start(const SinkOptions& options, const uint8_t run_id[16], ImageOutput& output, Arena& arena);

  Result<uint32_t> acquire();
  std::byte* buffer(uint32_t slot) { return options_->key != nullptr ? plain_ : queue_.buffer(slot); }
  uint32_t slot_bytes() const { return queue_.slot_bytes(); }
  // The first `bytes` of the slot's buffer, or of so many of its pieces; last: nothing follows.
  Result<void> write(uint32_t slot, uint32_t bytes, bool last = false, uint32_t pieces = 0);
  void discard(uint32_t slot) {
    if (options_->key == nullptr) queue_.discard(slot);
  }
  // Without a key: of the slot, in the order in which they are written; none if the back end cannot gather.
  std::span<iovec> pieces(uint32_t slot) { return queue_.pieces(slot); }
  void on_free(void (*function)(void* context, uint32_t slot), void* context) {
    queue_.on_free(function, context);
  }
  // Are pieces written from where they are, not from a buffer of ours?
  bool gathers() const { return options_->key == nullptr && output_->direct() && backend_->gathers(); }

  // In the image, of what is written next.
  uint64_t offset() const { return offset_; }
  // From this offset on: how far the file has what was written.
  uint64_t written_from(uint64_t offset) const { return queue_.written_from(offset, offset_); }
  uint64_t file_bytes() const { return options_->key != nullptr ? sealer_.file_bytes() : offset_; }
  // ns since the last call, where they are measured: that the device was waited for, and that encryption
  // took.
  int64_t take_waited();
  int64_t take_sealed();

  Result<void> drain() { return queue_.drain(); }
  // Any number of times.
  void abandon() { queue_.abandon(); }

  const char* path() const { return output_->path(); }
  // The one in use; also after the image. nullptr: none yet.
  FileBackend* backend() { return backend_; }
  const FileBackend* backend() const { return backend_; }
  const UringBackend& uring() const { return uring_; }

 private:
  Result<void> start_queue(Arena& arena);

  const SinkOptions* options_ = nullptr;
  ImageOutput* output_ = nullptr;
  PwritevBackend pwritev_;
  UringBackend uring_;
  FileBackend* backend_ = nullptr;
  WriteQueue queue_;
  ImageSealer sealer_;
  std::byte* plain_ = nullptr;  // encryption: what is gathered, before it goes to the sealer
  uint64_t offset_ = 0;
  int64_t waited_ns_ = 0, sealed_ns_ = 0;
};

}  // namespace ckpt
