#include "image/write/sink/slot_writer.h"

#include <errno.h>

#include <utility>
#include "base/preload_rules.h"

namespace ckpt {

Result<void> SlotWriter::start(const SinkOptions& options, const uint8_t run_id[16], ImageOutput& output,
                               Arena& arena) {
  options_ = &options;
  output_ = &output;
  offset_ = 0;
  waited_ns_ = sealed_ns_ = 0;
  CKPT_TRY(start_queue(arena));
  if (options.key == nullptr) return {};
  plain_ = static_cast<std::byte*>(arena.allocate(options.chunk_bytes, kPageSize));
  if (plain_ == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "the arena is too small to encrypt");
  return sealer_.start(*options.key, run_id, queue_, output, options.is_measured() ? options.clock : nullptr);
}

Result<void> SlotWriter::start_queue(Arena& arena) {
  // Writes into the page cache, or into a file in memory, are copies: io_uring could only hand them to a
  // worker.
  uring_.use(options_->ring_guard);
  const bool by_ring = options_->uring && output_->direct() && !output_->in_memory();
  FileBackend* first = by_ring ? static_cast<FileBackend*>(&uring_) : &pwritev_;
  FileBackend* second = first == &pwritev_ ? nullptr : &pwritev_;
  if (FileBackend* only = options_->backend != nullptr ? options_->backend : output_->only_backend()) {
    first = only;
    second = nullptr;
  }
  CKPT_TRY(queue_.start(*first, second, output_->fd(), output_->path(), arena, options_->in_flight,
                        options_->chunk_bytes));
  backend_ = queue_.backend();
  return {};
}

Result<uint32_t> SlotWriter::acquire() {
  if (options_->key != nullptr) return uint32_t{0};
  if (!options_->is_measured()) return queue_.acquire();
  const int64_t before = options_->clock();
  auto slot = queue_.acquire();
  waited_ns_ += options_->clock() - before;
  return slot;
}

Result<void> SlotWriter::write(uint32_t slot, uint32_t bytes, bool last, uint32_t pieces) {
  const bool measured = options_->is_measured();
  const int64_t before = measured ? options_->clock() : 0;
  if (options_->key != nullptr) {
    CKPT_TRY(sealer_.add({plain_, bytes}, last));
  } else {
    output_->reserve_until(offset_ + bytes);
    CKPT_TRY(pieces != 0 ? queue_.write_pieces(slot, offset_, pieces) : queue_.write(slot, offset_, bytes));
  }
  offset_ += bytes;
  if (!measured) return {};
  const int64_t took = options_->clock() - before;
  const int64_t waited = options_->key != nullptr ? sealer_.take_waited() : took;
  waited_ns_ += waited;
  sealed_ns_ += took - waited;
  return {};
}

int64_t SlotWriter::take_waited() { return std::exchange(waited_ns_, 0); }
int64_t SlotWriter::take_sealed() { return std::exchange(sealed_ns_, 0); }

}  // namespace ckpt
