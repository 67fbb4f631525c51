// Staging buffers on their way to the file: a bounded number, each either free, being filled, or in
// flight. Finishes short writes; keeps the first error.
//
// Owner:     image/write. Callers: the sink's thread only, in the victim. Memory from the arena of start().
// Never:     waits for anything but its own writes.
//
//   free --acquire()--> filling --write()--> in flight --reap: all bytes written--> free
//                                              |   ^
//                                              +---+ short: the rest is started again
// What is written lies in the slot's own buffer, or in pieces there and elsewhere: those are not touched any
// more when the slot has come back (on_free). A file system that took O_DIRECT but refuses the writes
// (EINVAL) gets the same write buffered. After an error every call gives that error; abandon() then brings
// all slots back to free.
#pragma once

#include "base/memory/arena.h"
#include "base/result.h"
#include "image/write/backend/file_backend.h"

namespace ckpt {

class WriteQueue {
 public:
  // slot_bytes: a multiple of 4096. `fallback` (may be null) serves where `backend` cannot be set up.
  // `path` is for messages and must outlive the queue.
  Result<void> start(FileBackend& backend, FileBackend* fallback, int fd, const char* path, Arena& arena,
                     uint32_t slots, uint32_t slot_bytes);
  // The one in use; null before start() and after abandon().
  FileBackend* backend() { return backend_; }
  // A free slot; waits for a write when there is none.
  Result<uint32_t> acquire();
  std::byte* buffer(uint32_t slot) { return staging_ + size_t{slot} * slot_bytes_; }
  uint32_t slot_bytes() const { return slot_bytes_; }
  // Starts writing the first `bytes` of an acquired slot at `offset`; gives the slot back when done.
  Result<void> write(uint32_t slot, uint64_t offset, uint32_t bytes);
  // The same with what lies in the first `count` of pieces(slot), each a multiple of 4096.
  Result<void> write_pieces(uint32_t slot, uint64_t offset, uint32_t count);
  // Room for them; none if the back end cannot gather.
  std::span<iovec> pieces(uint32_t slot) { return {pieces_ + size_t{slot} * most_pieces_, most_pieces_}; }
  // Called with each slot that was written, or could not be, and is free again.
  void on_free(void (*function)(void* context, uint32_t slot), void* context) {
    on_free_ = function;
    context_ = context;
  }
  // Gives back an acquired slot unwritten.
  void discard(uint32_t slot) { slots_[slot].state = SlotState::kFree; }
  // Of what was given to write() up to `end`: how far the file has it all, from this offset on.
  uint64_t written_from(uint64_t offset, uint64_t end) const;
  // Until nothing is in flight.
  Result<void> drain();
  // The same, whatever the results; the queue is then stopped. May be called at any time.
  void abandon();

 private:
  static constexpr uint32_t kMaxSlots = 64;
  static constexpr uint32_t kMostPieces = 256;
  enum class SlotState : uint8_t { kFree, kFilling, kInFlight };
  struct Slot {
    SlotState state;
    bool buffered;  // has been started again without O_DIRECT: a second EINVAL means something else
    uint32_t bytes, done;
    uint64_t offset;
    uint32_t piece, piece_end;  // those not yet written; none: the bytes lie in the slot's buffer
  };
  Result<void> reap_one();
  Result<void> resume(uint32_t slot);
  void skip(uint32_t slot, uint32_t bytes);
  void free(uint32_t slot);
  bool give_up_direct(long error);
  Result<void> fail(long error);

  FileBackend* backend_ = nullptr;
  int fd_ = -1;
  bool direct_ = false;
  const char* path_ = "";
  std::byte* staging_ = nullptr;
  iovec* pieces_ = nullptr;
  uint32_t most_pieces_ = 0;  // of a slot
  void (*on_free_)(void*, uint32_t) = nullptr;
  void* context_ = nullptr;
  uint32_t slot_count_ = 0, slot_bytes_ = 0, in_flight_ = 0, next_ = 0;
  long error_ = 0;
  Slot slots_[kMaxSlots];
};

}  // namespace ckpt
