#include "image/write/backend/uring_backend.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "base/memory/own_place.h"
#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint64_t kIgnored = ~0ull;  // user_data of an entry that became a no-op

// Pages that io_uring holds count against a limit (RLIMIT_MEMLOCK) that all programs of a user share,
// except with this capability. Without it we leave the limit to the program.
bool pinning_is_free() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (sys::failed(sys::call(__NR_capget, &header, data))) return false;
  return (data[0].effective >> CAP_IPC_LOCK & 1) != 0;
}

// As io_uring_queue_init_params(3), in memory of ours: the kernel maps a ring where it likes, which may be a
// hole of the program. liburing knows nothing of it before its version 2.5. -EINVAL: the kernel neither
// (before Linux 6.5), or the ring takes more than a page.
long make_ring_in_own_place(uint32_t entries, io_uring& ring, io_uring_params& params) {
  constexpr uint32_t kNoMmap = 1 << 14;  // IORING_SETUP_NO_MMAP
  constexpr uint64_t kBytes = 2 * kPageSize;
  if (entries * sizeof(io_uring_sqe) > kPageSize) return -EINVAL;
  const long place = map_own(kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (sys::failed(place)) return place;
  auto* head = reinterpret_cast<std::byte*>(place);
  params.flags = kNoMmap;
  params.cq_off.resv2 = static_cast<uint64_t>(place);              // user_addr
  params.sq_off.resv2 = static_cast<uint64_t>(place) + kPageSize;  // the entries'
  const long fd = sys::call(__NR_io_uring_setup, entries, &params);
  if (sys::failed(fd)) {
    sys::call(__NR_munmap, place, kBytes);
    return fd;
  }
  auto word = [head](uint32_t offset) { return reinterpret_cast<unsigned*>(head + offset); };
  ring = {};
  io_uring_sq& sq = ring.sq;
  sq.khead = word(params.sq_off.head);
  sq.ktail = word(params.sq_off.tail);
  sq.kring_mask = word(params.sq_off.ring_mask);
  sq.kring_entries = word(params.sq_off.ring_entries);
  sq.kflags = word(params.sq_off.flags);
  sq.kdropped = word(params.sq_off.dropped);
  sq.array = word(params.sq_off.array);
  sq.sqes = reinterpret_cast<io_uring_sqe*>(head + kPageSize);
  sq.ring_ptr = head;
  sq.ring_sz = kPageSize;
  sq.ring_mask = *sq.kring_mask;
  sq.ring_entries = *sq.kring_entries;
  io_uring_cq& cq = ring.cq;
  cq.khead = word(params.cq_off.head);
  cq.ktail = word(params.cq_off.tail);
  cq.kring_mask = word(params.cq_off.ring_mask);
  cq.kring_entries = word(params.cq_off.ring_entries);
  cq.kflags = params.cq_off.flags != 0 ? word(params.cq_off.flags) : nullptr;
  cq.koverflow = word(params.cq_off.overflow);
  cq.cqes = reinterpret_cast<io_uring_cqe*>(head + params.cq_off.cqes);
  cq.ring_ptr = head;
  cq.ring_sz = kPageSize;
  cq.ring_mask = *cq.kring_mask;
  cq.ring_entries = *cq.kring_entries;
  for (unsigned i = 0; i < sq.ring_entries; ++i) sq.array[i] = i;
  ring.flags = params.flags;
  ring.features = params.features;
  ring.ring_fd = ring.enter_ring_fd = static_cast<int>(fd);
  return 0;
}

}  // namespace

// The ring is not for children of the program (io_uring_ring_dontfork): nobody there would ever unmap it.
long UringBackend::make_ring(uint32_t in_flight) {
  io_uring_params params{};
  // Twice the writes: an entry that failed to be submitted stays in the ring as a no-op.
  long r = make_ring_in_own_place(2 * in_flight, ring_, params);
  if (r == -EINVAL) {
    params = {};
    r = io_uring_queue_init_params(2 * in_flight, &ring_, &params);
  }
  if (r < 0) return r;
  // A write with a plain address (IORING_OP_WRITE) and completions that are never dropped: Linux 5.6.
  if ((params.features & IORING_FEAT_NODROP) == 0 || (params.features & IORING_FEAT_RW_CUR_POS) == 0) {
    io_uring_queue_exit(&ring_);
    return -EOPNOTSUPP;
  }
  io_uring_ring_dontfork(&ring_);
  return 0;
}

long UringBackend::attach(int fd, std::span<std::byte> staging, uint32_t in_flight) {
  if (in_flight > kMaxInFlight) return -EINVAL;
  if (guard_ != nullptr && !guard_->hold()) return -EBUSY;
  const long made = make_ring(in_flight);
  if (guard_ != nullptr) guard_->release();
  if (made != 0) return made;
  staging_ = staging;
  registered_ = false;
  from_staging_ = 0;
  attached_ = true;
  fd_ = fd;
  limit_ = in_flight;
  done_count_ = 0;
  done_here_ = 0;
  for (WriteRequest& request : started_) request.bytes = 0;
  return 0;
}

void UringBackend::register_staging() {
  iovec all{staging_.data(), staging_.size()};
  registered_ = pinning_is_free() && io_uring_register_buffers(&ring_, &all, 1) == 0;
}

long UringBackend::write(const WriteRequest& request) {
  if (request.slot >= limit_) return -EINVAL;
  started_[request.slot] = request;
  // When each slot has been written from more than once.
  if (request.pieces.empty() && ++from_staging_ == 2 * limit_) register_staging();
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  if (entry == nullptr) {
    finish(request.slot, write_here(request));
    return 0;
  }
  if (!request.pieces.empty()) {
    io_uring_prep_writev(entry, fd_, request.pieces.data(), static_cast<unsigned>(request.pieces.size()),
                         request.offset);
  } else if (registered_) {
    io_uring_prep_write_fixed(entry, fd_, request.data, request.bytes, request.offset, 0);
  } else {
    io_uring_prep_write(entry, fd_, request.data, request.bytes, request.offset);
  }
  entry->rw_flags = RWF_NOWAIT;
  entry->user_data = request.slot;
  while (io_uring_submit(&ring_) == -EINTR) {
  }
  // This entry is the ring's last. The result of io_uring_submit() does not say whether the entry was taken:
  // entries that became no-ops may lie before it, and count as well.
  if (io_uring_sq_ready(&ring_) == 0) return 0;
  // Not taken (no memory for it just now). The entry will go out with the next one, as a no-op.
  io_uring_prep_nop(entry);
  entry->user_data = kIgnored;
  finish(request.slot, write_here(request));
  return 0;
}

WriteResult UringBackend::wait() {
  while (done_count_ == 0) {
    io_uring_cqe* entry = nullptr;
    long r = io_uring_wait_cqe(&ring_, &entry);
    if (r == -EINTR) continue;
    if (r < 0) {
      // The ring itself is broken; the writes it holds cannot be told apart any more.
      for (uint32_t slot = 0; slot < limit_; slot++) {
        if (started_[slot].bytes != 0) finish(slot, r);
      }
      break;
    }
    uint64_t slot = entry->user_data;
    long result = entry->res;
    io_uring_cqe_seen(&ring_, entry);
    if (slot == kIgnored) continue;
    if (result == -EAGAIN || result == -EOPNOTSUPP) result = write_here(started_[slot]);
    finish(static_cast<uint32_t>(slot), result);
  }
  WriteResult got = done_[--done_count_];
  started_[got.slot].bytes = 0;
  return got;
}

long UringBackend::write_here(const WriteRequest& request) {
  done_here_++;
  iovec piece{const_cast<std::byte*>(request.data), request.bytes};
  const std::span<const iovec> pieces =
      request.pieces.empty() ? std::span<const iovec>(&piece, 1) : request.pieces;
  return sys::call(__NR_pwritev, fd_, pieces.data(), pieces.size(), request.offset, 0L);
}

long UringBackend::sync(int fd) { return sys::call(__NR_fsync, fd); }

void UringBackend::detach() {
  if (attached_) io_uring_queue_exit(&ring_);
  attached_ = false;
}

AddrRange UringBackend::ring_range() const {
  if (!attached_) return {};
  Addr start = Addr::of(ring_.sq.ring_ptr);
  return {start, (start + ring_.sq.ring_sz).page_up()};
}

AddrRange UringBackend::entries_range() const {
  if (!attached_) return {};
  Addr start = Addr::of(ring_.sq.sqes);
  return {start, (start + ring_.sq.ring_entries * sizeof(io_uring_sqe)).page_up()};
}

}  // namespace ckpt
