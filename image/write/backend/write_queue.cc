#include "image/write/backend/write_queue.h"

#include <errno.h>
#include <fcntl.h>

#include "base/sys.h"
#include "base/units.h"
#include "image/format/image_format.h"
#include "image/format/io_error.h"
#include "base/preload_rules.h"

namespace ckpt {

Result<void> WriteQueue::start(FileBackend& backend, FileBackend* fallback, int fd, const char* path,
                               Arena& arena, uint32_t slots, uint32_t slot_bytes) {
  path_ = path;
  slot_bytes_ = slot_bytes;
  slot_count_ = slots < kMaxSlots ? slots : kMaxSlots;
  in_flight_ = next_ = 0;
  error_ = 0;
  fd_ = fd;
  long flags = sys::call(__NR_fcntl, fd, static_cast<long>(F_GETFL));
  direct_ = !sys::failed(flags) && (flags & O_DIRECT) != 0;
  for (uint32_t i = 0; i < slot_count_; i++) slots_[i] = {SlotState::kFree, false, 0, 0, 0, 0, 0};
  size_t total = size_t{slot_count_} * slot_bytes_;
  staging_ = static_cast<std::byte*>(arena.allocate(total, kPageSize));
  if (staging_ == nullptr) {
    return make_error(ExitCode::kInternal, ENOMEM, "image buffers of {} bytes do not fit into the arena",
                      total);
  }
  FileBackend* chosen = &backend;
  long r = chosen->attach(fd, {staging_, total}, slot_count_);
  if (r < 0 && fallback != nullptr) {
    chosen = fallback;
    r = chosen->attach(fd, {staging_, total}, slot_count_);
  }
  if (r < 0) return image_io_error("set up writing of", path_, r);
  backend_ = chosen;
  most_pieces_ = 0;
  on_free_ = nullptr;
  if (chosen->gathers()) {
    pieces_ = static_cast<iovec*>(arena.allocate(size_t{slot_count_} * kMostPieces * sizeof(iovec)));
    if (pieces_ != nullptr) most_pieces_ = kMostPieces;
  }
  return {};
}

void WriteQueue::free(uint32_t slot) {
  slots_[slot].state = SlotState::kFree;
  if (on_free_ != nullptr) on_free_(context_, slot);
}

Result<void> WriteQueue::fail(long error) {
  if (error_ == 0) error_ = error;
  return image_io_error("write", path_, error_);
}

Result<uint32_t> WriteQueue::acquire() {
  while (true) {
    if (error_ != 0) return fail(error_).error();
    for (uint32_t i = 0; i < slot_count_; i++) {
      uint32_t slot = (next_ + i) % slot_count_;
      if (slots_[slot].state != SlotState::kFree) continue;
      slots_[slot].state = SlotState::kFilling;
      next_ = (slot + 1) % slot_count_;
      return slot;
    }
    if (in_flight_ == 0) return make_error(ExitCode::kInternal, 0, "all image buffers are being filled");
    CKPT_TRY(reap_one());
  }
}

Result<void> WriteQueue::write(uint32_t slot, uint64_t offset, uint32_t bytes) {
  slots_[slot] = {SlotState::kFilling, false, bytes, 0, offset, 0, 0};
  if (error_ != 0) return fail(error_);
  return resume(slot);
}

Result<void> WriteQueue::write_pieces(uint32_t slot, uint64_t offset, uint32_t count) {
  uint32_t bytes = 0;
  for (const iovec& piece : pieces(slot).first(count)) bytes += static_cast<uint32_t>(piece.iov_len);
  slots_[slot] = {SlotState::kFilling, false, bytes, 0, offset, 0, count};
  if (error_ != 0) return fail(error_);
  return resume(slot);
}

// So many more bytes of the slot are written.
void WriteQueue::skip(uint32_t slot, uint32_t bytes) {
  Slot& s = slots_[slot];
  s.done += bytes;
  for (; s.piece < s.piece_end && bytes > 0;) {
    iovec& piece = pieces(slot)[s.piece];
    const auto n = bytes < piece.iov_len ? bytes : static_cast<uint32_t>(piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + n;
    piece.iov_len -= n;
    bytes -= n;
    if (piece.iov_len == 0) ++s.piece;
  }
}

// Writes in flight keep the way they were started with; each that is refused comes here.
bool WriteQueue::give_up_direct(long error) {
  if (error != -EINVAL || !direct_) return false;
  long flags = sys::call(__NR_fcntl, fd_, static_cast<long>(F_GETFL));
  if (sys::failed(flags)) return false;
  if ((flags & O_DIRECT) == 0) return true;
  return !sys::failed(sys::call(__NR_fcntl, fd_, static_cast<long>(F_SETFL), flags & ~long{O_DIRECT}));
}

Result<void> WriteQueue::resume(uint32_t slot) {
  Slot& s = slots_[slot];
  const std::span<const iovec> rest = pieces(slot).subspan(s.piece, s.piece_end - s.piece);
  const std::byte* data = s.piece_end == 0 ? buffer(slot) + s.done : nullptr;
  long r = backend_->write({slot, data, s.bytes - s.done, s.offset + s.done, rest});
  if (r < 0) {
    free(slot);
    return fail(r);
  }
  s.state = SlotState::kInFlight;
  in_flight_++;
  return {};
}

Result<void> WriteQueue::reap_one() {
  WriteResult got = backend_->wait();
  in_flight_--;
  Slot& s = slots_[got.slot];
  if (give_up_direct(got.result) && !s.buffered) {
    s.buffered = true;
    return resume(got.slot);
  }
  uint64_t whole = 0;
  long error = got.result < 0 ? got.result : 0;
  // With O_DIRECT the rest must start at a block again: bytes of a block written in part are
  // written once more.
  if (error == 0) whole = static_cast<uint64_t>(got.result) & ~(kBlockSize - 1);
  if (whole > s.bytes - s.done) error = -EIO;
  // A write that took nothing and named no reason: the kernel does this at the end of a device.
  if (error == 0 && whole == 0) error = -ENOSPC;
  if (error == 0) skip(got.slot, static_cast<uint32_t>(whole));
  if (error == 0 && s.done < s.bytes) return resume(got.slot);
  free(got.slot);
  return error == 0 ? Result<void>() : fail(error);
}

uint64_t WriteQueue::written_from(uint64_t offset, uint64_t end) const {
  for (uint32_t i = 0; i < slot_count_; i++) {
    const Slot& s = slots_[i];
    if (s.state == SlotState::kInFlight && s.offset + s.bytes > offset && s.offset < end) end = s.offset;
  }
  return end;
}

Result<void> WriteQueue::drain() {
  while (in_flight_ > 0) CKPT_TRY(reap_one());
  if (error_ != 0) return fail(error_);
  return {};
}

void WriteQueue::abandon() {
  if (backend_ == nullptr) return;
  while (in_flight_ > 0) {
    const WriteResult got = backend_->wait();
    in_flight_--;
    free(got.slot);
  }
  backend_->detach();
  backend_ = nullptr;
}

}  // namespace ckpt
