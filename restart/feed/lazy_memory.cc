#include "restart/feed/lazy_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <tuple>

namespace ckpt {
namespace {

constexpr uint64_t kBatchBytes = 512u << 10;  // that a loader reads at once
constexpr uint64_t kMostGap = 16u << 10;      // bytes that are not wanted, read rather than left out
constexpr size_t kMostJobs = 256;     // of one batch; any number of extents may be in one place of the file
constexpr unsigned kMostLoaders = 3;  // one reads, another checks, the third puts pages in place

uint64_t padded(uint64_t bytes) { return (bytes + kPageSize - 1) & ~(kPageSize - 1); }

}  // namespace

// What one thread reads into and unpacks into.
class LazyMemory::Buffers {
 public:
  Buffers() = default;
  ~Buffers() {
    for (Buffer* b : {&stored_, &memory_}) {
      if (b->at != nullptr) munmap(b->at, b->bytes);
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Result<std::span<std::byte>> stored(uint64_t bytes) { return room(stored_, bytes); }
  Result<std::span<std::byte>> memory(uint64_t bytes) { return room(memory_, bytes); }
  DirectReads direct;

 private:
  struct Buffer {
    void* at = nullptr;
    uint64_t bytes = 0;
  };
  static Result<std::span<std::byte>> room(Buffer& b, uint64_t bytes) {
    if (bytes > b.bytes) {
      if (b.at != nullptr) munmap(b.at, b.bytes);
      b.bytes = std::max(bytes, kBatchBytes);
      b.at = mmap(nullptr, b.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (b.at == MAP_FAILED) {
        b = {};
        return make_error(ExitCode::kSystem, errno, "no memory to read {} bytes of the image ({})", bytes,
                          errno_name(errno));
      }
    }
    return std::span<std::byte>(static_cast<std::byte*>(b.at), bytes);
  }
  Buffer stored_, memory_;
};

LazyMemory::LazyMemory(const ImageChain& image, const LazyPlan& plan)
    : image_(image), plan_(plan), stored_(image), pieces_(lazy_pieces(image, plan)) {
  by_file_.resize(pieces_.size());
  for (uint32_t i = 0; i < by_file_.size(); ++i) by_file_[i] = i;
  auto place = [&](uint32_t i) {
    const MemoryPiece& p = pieces_[i];
    return std::tuple(p.image, image.image(p.image).extents()[p.extent].offset.value, p.extent, p.into);
  };
  auto before = [&](uint32_t a, uint32_t b) { return place(a) < place(b); };
  // Mostly the writer has gone through memory in order.
  if (!std::is_sorted(by_file_.begin(), by_file_.end(), before))
    std::sort(by_file_.begin(), by_file_.end(), before);
  job_of_piece_.resize(by_file_.size());
  for (uint32_t i = 0; i < by_file_.size(); ++i) {
    const MemoryPiece& p = pieces_[by_file_[i]];
    if (jobs_.empty() || jobs_.back().image != p.image || jobs_.back().extent != p.extent) {
      jobs_.push_back({p.image, p.extent, i, i});
    }
    jobs_.back().last = i + 1;
    job_of_piece_[by_file_[i]] = static_cast<uint32_t>(jobs_.size() - 1);
  }
  for (const MemoryPiece& p : pieces_) all_.add({p.address, p.address + p.length});
}

LazyMemory::~LazyMemory() = default;

Result<void> LazyMemory::start(ScopedFd uffd, Addr gate) {
  gate_ = gate;
  bell_ = ScopedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_.valid()) return make_error(ExitCode::kSystem, errno, "no eventfd ({})", errno_name(errno));
  Space& space = spaces_.emplace_back();
  space.uffd = std::move(uffd);
  space.pending = std::move(all_);
  return {};
}

Result<void> LazyMemory::load_first() {
  Buffers buffers;
  Space& space = spaces_.front();
  for (Addr at : plan_.first) {
    std::optional<Addr> saved;
    {
      std::lock_guard guard(lock_);
      saved = space.pending.saved_address(at.page_down());
    }
    if (saved) CKPT_TRY(load(space, &jobs_[job_of(*saved)], 1, buffers));
  }
  return {};
}

LoadingCost LazyMemory::cost() const {
  std::lock_guard guard(lock_);
  return cost_;
}

size_t LazyMemory::job_of(Addr saved) const {
  auto p = std::upper_bound(pieces_.begin(), pieces_.end(), saved,
                            [](Addr a, const MemoryPiece& piece) { return a < piece.address; });
  return job_of_piece_[static_cast<size_t>(p - pieces_.begin()) - 1];
}

void LazyMemory::wake(Space& space, Addr page) {
  uffdio_range range{page.value, kPageSize};
  if (space.uffd.valid()) sys::call(__NR_ioctl, space.uffd.get(), UFFDIO_WAKE, &range);
}

void LazyMemory::space_gone(Space& space) {
  // For the kernel the memory is ordinary again once the last reference to the userfaultfd is gone; then it
  // wakes the threads that wait.
  space.uffd.reset();
  space.pending = {};
  // The server's poll() still has a reference: ring, so that it returns.
  ring();
}

void LazyMemory::ring() {
  uint64_t one = 1;
  sys::call(__NR_write, bell_.get(), &one, sizeof(one));
}

void LazyMemory::take_events(Space& space) {
  bool faults = false;
  while (space.uffd.valid()) {
    constexpr size_t kMost = 16;
    uffd_msg messages[kMost];
    long n = sys::call(__NR_read, space.uffd.get(), messages, sizeof(messages));
    if (n <= 0) {
      if (n == -EAGAIN || n == 0) break;
      if (!error_) {
        error_ =
            make_error(ExitCode::kSystem, static_cast<int>(n),
                       "cannot follow what the program does with its memory ({}); restart it with --eager",
                       errno_name(static_cast<int>(n)));
      }
      break;
    }
    for (size_t i = 0; i < static_cast<size_t>(n) / sizeof(uffd_msg); ++i) {
      const uffd_msg& m = messages[i];
      switch (m.event) {
        case UFFD_EVENT_PAGEFAULT: {
          Addr page = Addr{m.arg.pagefault.address}.page_down();
          if (page == gate_) break;  // its thread waits until all is loaded
          faults_.push_back({&space, page});
          faults = true;
          break;
        }
        case UFFD_EVENT_FORK: {
          Space& child = spaces_.emplace_back();
          child.uffd = ScopedFd(static_cast<int>(m.arg.fork.ufd));
          child.pending = space.pending;
          faults = true;  // the server has one more descriptor to poll
          break;
        }
        case UFFD_EVENT_REMAP: {
          Addr from{m.arg.remap.from};
          space.pending.move({from, from + m.arg.remap.len}, Addr{m.arg.remap.to});
          break;
        }
        case UFFD_EVENT_REMOVE:
        case UFFD_EVENT_UNMAP:
          space.pending.remove({Addr{m.arg.remove.start}, Addr{m.arg.remove.end}});
          break;
        default:
          break;
      }
    }
  }
  if (faults || error_) ring();
}

void LazyMemory::take_all_events() {
  for (size_t i = 0; i < spaces_.size(); ++i) take_events(spaces_[i]);
}

// Stops early, with pages still pending, when the kernel asks for its events to be read first (EAGAIN).
Result<void> LazyMemory::put(Space& space, Addr to, const std::byte* from, uint64_t length) {
  uint64_t most = length;
  while (length > 0 && space.uffd.valid()) {
    uffdio_copy copy{to.value, reinterpret_cast<uint64_t>(from), std::min(most, length), 0, 0};
    long r = sys::call(__NR_ioctl, space.uffd.get(), UFFDIO_COPY, &copy);
    uint64_t done = copy.copy > 0 ? static_cast<uint64_t>(copy.copy) : 0;
    cost_.bytes += done;
    if (r != 0 && done == 0) {
      if (r == -EAGAIN) return {};
      if (r == -ESRCH) {
        space_gone(space);
        return {};
      }
      if (r == -ENOENT && copy.len > kPageSize) {
        most = kPageSize;  // the program has made several mappings of it: page by page, for none spans two
        continue;
      }
      if (r != -ENOENT && r != -EEXIST) {
        return make_error(ExitCode::kSystem, static_cast<int>(r), "cannot load the memory at {:#x} ({}){}",
                          to.value, errno_name(static_cast<int>(r)),
                          r == -ENOMEM ? ": not enough memory" : "");
      }
      // ENOENT: the memory is not registered any more. EEXIST: the page is there, or a guard mark that the
      // program asked for (MADV_GUARD_INSTALL).
      done = kPageSize;
      wake(space, to);
    }
    space.pending.remove({to, to + done});
    to = to + done;
    from += done;
    length -= done;
  }
  return {};
}

Result<void> LazyMemory::put_job(Space& space, const Job& job, const std::byte* memory) {
  for (uint32_t i = job.first; i < job.last; ++i) {
    const MemoryPiece& p = pieces_[by_file_[i]];
    const AddrRange saved{p.address, p.address + p.length};
    // One round, unless the program is changing its address space.
    for (;;) {
      for (const PendingPages::Part& part : space.pending.parts_of(saved)) {
        CKPT_TRY(put(space, part.address, memory + p.into + (part.saved - p.address), part.length));
        // Pages that put() has left are looked up again: the program may have moved them.
        if (!space.pending.parts_of({part.saved, part.saved + part.length}).empty()) break;
      }
      if (!space.uffd.valid() || space.pending.parts_of(saved).empty()) break;
      take_all_events();
      if (error_) return *error_;
      // The kernel queues the event when its change is done, and then waits until it is read.
      constexpr int kLongestMs = 1;
      pollfd event{space.uffd.get(), POLLIN, 0};  // under the lock: another thread may close it
      lock_.unlock();
      poll(&event, 1, kLongestMs);
      lock_.lock();
    }
  }
  return {};
}

bool LazyMemory::wanted(const Space& space, const Job& job) const {
  for (uint32_t i = job.first; i < job.last; ++i) {
    const MemoryPiece& p = pieces_[by_file_[i]];
    if (!space.pending.parts_of({p.address, p.address + p.length}).empty()) return true;
  }
  return false;
}

Result<void> LazyMemory::load(Space& space, const Job* jobs, size_t count, Buffers& buffers) {
  auto extent_of = [&](const Job& j) -> const Extent& { return image_.image(j.image).extents()[j.extent]; };
  struct Run {                // contiguous in the file
    uint64_t begin, end, at;  // `at`: in what is read
  };
  std::vector<Run> runs;
  std::vector<uint64_t> stored_at(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t begin = extent_of(jobs[i]).offset.value, end = begin + padded(extent_of(jobs[i]).stored);
    if (runs.empty() || begin > runs.back().end + kMostGap) {
      runs.push_back(
          {begin, begin, runs.empty() ? 0 : runs.back().at + (runs.back().end - runs.back().begin)});
    }
    runs.back().end = std::max(runs.back().end, end);
    stored_at[i] = runs.back().at + (begin - runs.back().begin);
  }
  auto stored = buffers.stored(runs.back().at + (runs.back().end - runs.back().begin));
  if (!stored.ok()) return stored.error();
  std::vector<StoredRead> reads;
  for (const Run& r : runs) reads.push_back({r.begin, stored->subspan(r.at, r.end - r.begin)});
  CKPT_TRY(stored_.read(jobs[0].image, reads, buffers.direct));
  const std::byte* memory = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const Extent& e = extent_of(jobs[i]);
    if (i == 0 || !e.same_place(extent_of(jobs[i - 1]))) {
      std::span<std::byte> unpacked;
      if (e.codec != Codec::kNone) {
        auto room = buffers.memory(e.length);
        if (!room.ok()) return room.error();
        unpacked = *room;
      }
      auto opened = image_.image(jobs[i].image)
                        .open_extent(e, stored->subspan(stored_at[i], padded(e.stored)), unpacked);
      if (!opened.ok()) return opened.error();
      memory = *opened;
    }
    std::lock_guard guard(lock_);
    CKPT_TRY(put_job(space, jobs[i], memory));
  }
  return {};
}

Result<void> LazyMemory::serve(const Fault& fault, Buffers& buffers) {
  Space& space = *fault.space;
  size_t job;
  {
    std::unique_lock guard(lock_);
    ++cost_.faults;
    for (;;) {
      if (!space.uffd.valid()) return {};
      auto saved = space.pending.saved_address(fault.page);
      if (saved) {
        job = job_of(*saved);
        break;
      }
      // The page is in no image, or was given back: zeros. Or another thread has put it in place: EEXIST.
      uffdio_zeropage zero{{fault.page.value, kPageSize}, 0, 0};
      long r = sys::call(__NR_ioctl, space.uffd.get(), UFFDIO_ZEROPAGE, &zero);
      if (r == 0) ++cost_.zero_faults;
      if (r == -ESRCH) space_gone(space);
      if (r == -ENOMEM)
        return make_error(ExitCode::kSystem, ENOMEM, "no memory for a page at {:#x}", fault.page.value);
      if (r != -EAGAIN) {
        if (r != 0) wake(space, fault.page);
        return {};
      }
      take_all_events();
      if (error_) return *error_;
      constexpr int kLongestMs = 1;
      pollfd event{space.uffd.get(), POLLIN, 0};  // under the lock: another thread may close it
      guard.unlock();
      poll(&event, 1, kLongestMs);
      guard.lock();
    }
  }
  CKPT_TRY(load(space, &jobs_[job], 1, buffers));
  // The page is in place, or the program has changed its mappings: then the thread faults again, and that
  // fault says what it needs.
  std::lock_guard guard(lock_);
  wake(space, fault.page);
  return {};
}

LazyMemory::Space* LazyMemory::current_locked() {
  if (current_ != nullptr && current_->uffd.valid()) return current_;
  current_ = nullptr;
  for (Space& s : spaces_) {
    if (!s.uffd.valid()) continue;
    current_ = &s;
    next_job_ = 0;
    break;
  }
  return current_;
}

void LazyMemory::load_everything() {
  std::call_once(held_, hold);
  Buffers buffers;
  std::vector<Job> batch;
  std::unique_lock guard(lock_);
  while (!error_ && !done_) {
    Space* space = current_locked();
    if (space == nullptr) {
      if (loading_ == 0) {
        done_ = true;
        break;
      }
      idle_.wait(guard);
      continue;
    }
    batch.clear();
    uint64_t end = 0, bytes = 0;
    for (; next_job_ < jobs_.size(); ++next_job_) {
      const Job& job = jobs_[next_job_];
      if (!wanted(*space, job)) continue;
      const Extent& e = image_.image(job.image).extents()[job.extent];
      const uint64_t at = e.offset.value, to = at + padded(e.stored);
      // A small gap before the extent is read too.
      const uint64_t from = batch.empty() || at > end + kMostGap ? at : end, more = std::max(to, from) - from;
      if (!batch.empty() &&
          (job.image != batch[0].image || bytes + more > kBatchBytes || batch.size() == kMostJobs))
        break;
      bytes += more;
      end = std::max(end, to);
      batch.push_back(job);
    }
    if (batch.empty()) {
      if (loading_ != 0) {
        idle_.wait(guard);
        continue;
      }
      if (!space->pending.empty()) {
        error_ = make_error(ExitCode::kInternal, 0,
                            "memory is left that belongs to no part of the image; restart with --eager");
        break;
      }
      space_gone(*space);  // all pages are in place: it becomes ordinary memory
      continue;
    }
    ++loading_;
    guard.unlock();
    auto loaded = load(*space, batch.data(), batch.size(), buffers);
    guard.lock();
    --loading_;
    if (!loaded.ok() && !error_) error_ = loaded.error();
    idle_.notify_all();
  }
  idle_.notify_all();
  ring();
}

void LazyMemory::hold() {
  if (const char* fifo = std::getenv("CKPT_RESTART_HOLD"); fifo != nullptr)
    ScopedFd(open(fifo, O_RDONLY | O_CLOEXEC));
}

Result<void> LazyMemory::run() {
  std::vector<std::thread> loaders;
  for (unsigned i = 0; i < kMostLoaders; ++i) {
    try {
      loaders.emplace_back(&LazyMemory::load_everything, this);
    } catch (const std::system_error& e) {
      if (!loaders.empty()) break;  // fewer loaders are slower, no more
      return make_error(ExitCode::kSystem, e.code().value(),
                        "no thread to load the memory ({}); raise ulimit -u", errno_name(e.code().value()));
    }
  }
  Buffers buffers;
  std::vector<pollfd> wait_for;
  std::vector<Fault> faults;
  for (;;) {
    wait_for.assign(1, {bell_.get(), POLLIN, 0});
    {
      std::lock_guard guard(lock_);
      take_all_events();
      faults.swap(faults_);
      if (done_ || error_) break;
      for (const Space& s : spaces_) {
        if (s.uffd.valid()) wait_for.push_back({s.uffd.get(), POLLIN, 0});
      }
    }
    for (const Fault& fault : faults) {
      auto served = serve(fault, buffers);
      if (served.ok()) continue;
      std::lock_guard guard(lock_);
      if (!error_) error_ = served.error();
    }
    if (!faults.empty()) {
      faults.clear();
      continue;
    }
    poll(wait_for.data(), wait_for.size(), -1);
    uint64_t rung;
    sys::call(__NR_read, bell_.get(), &rung, sizeof(rung));
  }
  idle_.notify_all();
  for (std::thread& t : loaders) {
    // After an error the loaders may still be reading; what they read is of no use, and the process ends.
    if (done_)
      t.join();
    else
      t.detach();
  }
  std::lock_guard guard(lock_);
  if (error_) return *error_;
  return {};
}

}  // namespace ckpt
