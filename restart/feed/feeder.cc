#include "restart/feed/feeder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <tuple>

#include "base/sys.h"
#include "restart/reports/packet.h"
#include "restart/reports/pipe.h"

namespace ckpt {
namespace {

constexpr uint64_t kLeastSlot = 1u << 20;

}  // namespace

// A buffer of whole pages, as O_DIRECT wants it.
class Feeder::PageBuffer {
 public:
  PageBuffer() = default;
  PageBuffer(const PageBuffer&) = delete;
  ~PageBuffer() {
    if (at_ != nullptr) munmap(at_, bytes_);
  }
  Result<std::span<std::byte>> room(uint64_t bytes) {
    if (bytes > bytes_) {
      if (at_ != nullptr) munmap(at_, bytes_);
      bytes_ = std::max(bytes, kLeastSlot);
      at_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (at_ == MAP_FAILED) {
        at_ = nullptr;
        bytes_ = 0;
        return make_error(ExitCode::kSystem, errno, "no memory to read {} bytes of the image ({})", bytes,
                          errno_name(errno));
      }
    }
    return std::span(static_cast<std::byte*>(at_), bytes);
  }

 private:
  void* at_ = nullptr;
  uint64_t bytes_ = 0;
};

// What one thread does.
class Feeder::Worker {
 public:
  explicit Worker(Feeder& feeder) : feeder_(feeder) {}

  // False: the new process is gone, and says itself why.
  Result<bool> bring(const FillBatch& batch) {
    std::span<std::byte> packed;
    if (batch.packed) {  // read before taking a slot: the disk need not wait for one
      auto room = packed_.room(batch.stored);
      if (!room.ok()) return room.error();
      packed = *room;
      CKPT_TRY(read_into(packed, batch));
    }
    if (!take_slot()) return false;
    const std::span<std::byte> slot(feeder_.ring_ + slot_ * feeder_.slot_bytes_, feeder_.slot_bytes_);
    if (!batch.packed) {
      packed = slot.first(batch.stored);
      CKPT_TRY(read_into(packed, batch));
    }
    const ImageReader& image = feeder_.image_.image(batch.image);
    for (uint64_t i = 0; i < batch.extents; ++i) {
      const FeedExtent& f = feeder_.plan_.extents[batch.first_extent + i];
      const Extent& e = image.extents()[f.extent];
      const auto stored = packed.subspan(f.stored_at, (e.stored + kPageSize - 1) & ~(kPageSize - 1));
      const std::span<std::byte> to = slot.subspan(f.at, e.length);
      auto memory = image.open_extent(e, stored, to);
      if (!memory.ok()) return memory.error();
      if (*memory != to.data())
        std::copy_n(*memory, e.length, to.data());  // stored unpacked among packed extents
    }
    uint64_t copied = batch.fills;  // by the restorer
    if (batch.puts > 0) {
      if (!feeder_.meet_process()) return false;
      if (feeder_.uffd_.valid()) copied -= batch.puts;
    }
    for (uint64_t i = copied; i < batch.fills; ++i) {
      const RestorerFill& fill = feeder_.plan_.fills[batch.first_fill + i];
      auto there = put(fill.address, slot.subspan(fill.from, fill.length));
      if (!there.ok() || !*there) return there;
    }
    return copied == 0 || hand_over(batch, copied);
  }

 private:
  Result<void> read_into(std::span<std::byte> to, const FillBatch& batch) {
    StoredRead reads[kMostReads];
    for (uint64_t i = 0; i < batch.reads; ++i) {
      const FillRead& r = feeder_.plan_.reads[batch.first_read + i];
      reads[i] = {r.offset, to.subspan(r.at, r.bytes)};
    }
    return feeder_.stored_->read(batch.image, std::span(reads, batch.reads), direct_);
  }

  // False: the new process is gone.
  Result<bool> put(uint64_t to, std::span<const std::byte> bytes) {
    uint64_t most = bytes.size();
    while (!bytes.empty()) {
      uffdio_copy copy{to, reinterpret_cast<uint64_t>(bytes.data()), std::min(most, bytes.size()),
                       UFFDIO_COPY_MODE_DONTWAKE, 0};
      const long r = sys::call(__NR_ioctl, feeder_.uffd_.get(), UFFDIO_COPY, &copy);
      if (copy.copy > 0) {
        to += static_cast<uint64_t>(copy.copy);
        bytes = bytes.subspan(static_cast<uint64_t>(copy.copy));
        continue;
      }
      if (r == -ESRCH) return false;
      if (r == -ENOENT && copy.len > kPageSize) {
        most = kPageSize;  // the kernel has it as several mappings: page by page, for none spans two
        continue;
      }
      return make_error(ExitCode::kSystem, static_cast<int>(r), "cannot load the memory at {:#x} ({}){}", to,
                        errno_name(static_cast<int>(r)), r == -ENOMEM ? ": not enough memory" : "");
    }
    return true;
  }

  bool take_slot() {
    if (has_slot_) return true;
    uint8_t number;
    if (read(feeder_.emptied_read_.get(), &number, sizeof(number)) != sizeof(number)) return false;
    slot_ = number;
    has_slot_ = true;
    return true;
  }

  Result<bool> hand_over(const FillBatch& batch, uint64_t fills) {
    const FillOrder order{batch.first_fill, fills, slot_, 0};
    has_slot_ = false;
    // An order is shorter than PIPE_BUF: orders of several threads do not mix.
    if (write(feeder_.orders_write_.get(), &order, sizeof(order)) == sizeof(order)) return true;
    if (errno == EPIPE) return false;
    return make_error(ExitCode::kSystem, errno, "cannot feed the new process ({})", errno_name(errno));
  }

  Feeder& feeder_;
  PageBuffer packed_;
  DirectReads direct_;
  uint32_t slot_ = 0;
  bool has_slot_ = false;
};

Feeder::~Feeder() {
  (void)join();
  if (ring_ != nullptr) munmap(ring_, kSlots * slot_bytes_);
}

Result<void> Feeder::prepare() {
  stored_.emplace(image_);
  slot_bytes_ = std::max((plan_.largest_batch + kPageSize - 1) & ~(kPageSize - 1), kLeastSlot);
  const uint64_t bytes = kSlots * slot_bytes_;
  ring_fd_.reset(memfd_create("ckpt-restart", MFD_CLOEXEC));
  if (!ring_fd_.valid() || ftruncate(ring_fd_.get(), static_cast<off_t>(bytes)) != 0) {
    return make_error(ExitCode::kSystem, errno,
                      "no shared memory of {} bytes ({}): raise ulimit -f if it is a limit", bytes,
                      errno_name(errno));
  }
  void* ring = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd_.get(), 0);
  if (ring == MAP_FAILED) {
    return make_error(ExitCode::kSystem, errno, "no address space for {} bytes ({})", bytes,
                      errno_name(errno));
  }
  ring_ = static_cast<std::byte*>(ring);
  std::tie(orders_read_, orders_write_) = make_pipe();
  if (orders_read_.valid()) std::tie(emptied_read_, emptied_write_) = make_pipe();
  if (!emptied_read_.valid()) {
    return make_error(ExitCode::kSystem, errno, "no pipe to the new process ({})", errno_name(errno));
  }
  int ends[2];
  if (plan_.puts && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
    socket_.reset(ends[0]);
    process_socket_.reset(ends[1]);
  }
  for (uint8_t slot = 0; slot < kSlots; ++slot) (void)!write(emptied_write_.get(), &slot, sizeof(slot));
  return {};
}

FeedFds Feeder::process_fds() const {
  return {ring_fd_.get(), orders_read_.get(), emptied_write_.get(), process_socket_.get(), slot_bytes_};
}

void Feeder::give_up_our_ends() {
  orders_write_.reset();
  emptied_read_.reset();
  socket_.reset();
}

Result<void> introduce_to_feeder(int socket, int uffd) {
  const uint64_t hello = 0;
  const int sent = send_packet(socket, std::as_bytes(std::span(&hello, 1)),
                               uffd >= 0 ? std::span(&uffd, 1) : std::span<const int>());
  if (sent == 0) return {};
  return make_error(ExitCode::kSystem, -sent, "ckpt-restart is gone ({})", errno_name(-sent));
}

// False: the new process is gone, and says itself why.
bool Feeder::meet_process() {
  std::call_once(met_, [this] {
    if (!socket_.valid()) return;
    uint64_t hello, registered = 0;
    int fd = -1;
    process_gone_ = receive_packet(socket_.get(), std::as_writable_bytes(std::span(&hello, 1)),
                                   std::span(&fd, 1), false) != Received::kMessage;
    uffd_.reset(fd);
    process_gone_ =
        process_gone_ || receive_packet(socket_.get(), std::as_writable_bytes(std::span(&registered, 1)), {},
                                        false) != Received::kMessage;
    if (registered == 0) uffd_.reset();
    // The memory is registered, but its descriptor did not come through: the restorer would wait for ever at
    // the first page that it copies.
    else if (!uffd_.valid())
      process_gone_ = true;
  });
  return !process_gone_;
}

Result<void> Feeder::start(VerifyProgress progress) {
  progress_ = std::move(progress);
  for (const FillBatch& batch : plan_.batches) total_ += batch.stored;
  // From here on only the new process has these ends open, so that a thread that waits for it learns when it
  // ends.
  orders_read_.reset();
  emptied_write_.reset();
  process_socket_.reset();
  // As many threads as processors to check and unpack, and one more, which reads meanwhile. One more again if
  // the restorer needs no processor, since the Feeder puts pages in place.
  const unsigned want =
      std::clamp(std::thread::hardware_concurrency() + (plan_.puts ? 2 : 1), 2u, kMostThreads);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  {
    std::lock_guard guard(lock_);  // no thread finds itself the last one before all are counted
    for (unsigned i = 0; i < want && error == 0; ++i) {
      pthread_t thread;
      error = pthread_create(&thread, nullptr, run, this);
      if (error == 0) threads_.push_back(thread);
    }
    at_work_ = static_cast<unsigned>(threads_.size());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!threads_.empty()) return {};
  return make_error(ExitCode::kSystem, error, "no thread to read the image ({})", errno_name(error));
}

void* Feeder::run(void* self) {
  static_cast<Feeder*>(self)->feed();
  return nullptr;
}

void Feeder::feed() {
  Worker worker(*this);
  // The first thread walks through the sections, which takes one small read for each chunk.
  const bool checks_sections = plan_.all && !sections_taken_.exchange(true, std::memory_order_relaxed);
  if (checks_sections) {
    if (auto r = image_.newest().verify_sections(); !r.ok()) failed(r.error());
  }
  while (!stop_.load(std::memory_order_relaxed)) {
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= plan_.batches.size()) break;
    auto brought = worker.bring(plan_.batches[i]);
    if (!brought.ok()) {
      failed(brought.error());
    } else if (!*brought) {
      stop_.store(true, std::memory_order_relaxed);
    } else if (progress_) {
      std::lock_guard guard(lock_);
      done_ += plan_.batches[i].stored;
      progress_(done_, total_);
    }
  }
  one_is_done();
}

void Feeder::failed(const Error& error) {
  std::lock_guard guard(lock_);
  if (!error_) error_ = error;
  stop_.store(true, std::memory_order_relaxed);
}

// The last thread tells the restorer that it has all memory, or, by closing the pipe, that it never will.
void Feeder::one_is_done() {
  std::lock_guard guard(lock_);
  if (--at_work_ > 0) return;
  if (!stop_.load(std::memory_order_relaxed)) {
    const FillOrder last{0, 0, 0, 1};
    (void)!write(orders_write_.get(), &last, sizeof(last));  // fails if the new process is gone
  }
  orders_write_.reset();
}

Result<void> Feeder::join() {
  for (pthread_t thread : threads_) pthread_join(thread, nullptr);
  threads_.clear();
  uffd_.reset();
  if (error_) return *error_;
  return {};
}

}  // namespace ckpt
