#include "writer/write_queue.h"

#include <errno.h>
#include <fcntl.h>

#include "base/sys.h"
#include "base/units.h"
#include "writer/image_format.h"
#include "writer/io_error.h"

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
  for (uint32_t i = 0; i < slot_count_; i++) slots_[i] = {SlotState::kFree, false, 0, 0, 0};
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
  return {};
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
  slots_[slot] = {SlotState::kFilling, false, bytes, 0, offset};
  if (error_ != 0) return fail(error_);
  return resume(slot);
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
  long r = backend_->write({slot, buffer(slot) + s.done, s.bytes - s.done, s.offset + s.done});
  if (r < 0) {
    s.state = SlotState::kFree;
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
  s.state = SlotState::kFree;
  if (give_up_direct(got.result) && !s.buffered) {
    s.buffered = true;
    return resume(got.slot);
  }
  if (got.result < 0) return fail(got.result);
  // With O_DIRECT the rest must start at a block again: bytes of a block written in part are
  // written once more.
  uint64_t whole = static_cast<uint64_t>(got.result) & ~(kBlockSize - 1);
  if (whole > s.bytes - s.done) return fail(-EIO);
  s.done += static_cast<uint32_t>(whole);
  if (s.done == s.bytes) return {};
  // A write that took nothing and named no reason: the kernel does this at the end of a device.
  if (whole == 0) return fail(-ENOSPC);
  return resume(got.slot);
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
    backend_->wait();
    in_flight_--;
  }
  backend_->detach();
  backend_ = nullptr;
}

}  // namespace ckpt
