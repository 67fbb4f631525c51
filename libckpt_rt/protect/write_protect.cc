#include "libckpt_rt/protect/write_protect.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include <optional>

#include "base/checks/check.h"
#include "base/clock.h"
#include "base/machine/kernel_caps.h"
#include "libckpt_rt/capture/memory/page_scan.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/process/own_files.h"
#include "libckpt_rt/core/threads/of_ours/urgency.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/protect/release_guard.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<ScopedFd> WriteProtection::open_with(uint64_t features) {
  UserfaultfdProbe probe;
  ScopedFd fd(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, &probe));
  if (!fd.valid() || probe.access != UserfaultfdAccess::kFull) {
    int error = probe.syscall_error;
    if (error == EMFILE || error == ENFILE) return cannot_open("a userfaultfd", error);
    return make_error(ExitCode::kUnavailable, error,
                      "full userfaultfd is not allowed here ({}); give CAP_SYS_PTRACE, set "
                      "vm.unprivileged_userfaultfd=1, or allow /dev/userfaultfd",
                      errno_name(error));
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  long r = sys::call(__NR_ioctl, fd.get(), UFFDIO_API, &api);
  if (r != 0) {
    return make_error(
        ExitCode::kUnavailable, static_cast<int>(r),
        "this kernel's userfaultfd cannot write-protect memory ({}); Linux 5.19 or newer is needed",
        errno_name(static_cast<int>(r)));
  }
  return fd;
}

Result<void> WriteProtection::open() {
  auto fd = open_with(kUffdFeaturesOfRealtime | UFFD_FEATURE_EVENT_UNMAP | kUffdFeatureWpUnpopulated);
  can_protect_ahead_ = fd.ok();
  if (!fd.ok()) fd = open_with(kUffdFeaturesOfRealtime);
  if (!fd.ok()) return fd.error();
  ScopedFd memory(static_cast<int>(own_files::open(own_files::OwnFile::kMemory)));
  ScopedFd event(static_cast<int>(sys::call(__NR_eventfd2, 0, EFD_CLOEXEC)));
  // Where it is forbidden only memory that the program itself may not read cannot be read (EACCES).
  if (!memory.valid() && memory.get() != -EACCES) return cannot_open("/proc/self/mem", memory.get());
  if (!event.valid()) return cannot_open("an eventfd", event.get());
  uffd_ = std::move(*fd);
  memory_file_ = std::move(memory);
  stop_event_ = std::move(event);
  return {};
}

long WriteProtection::add(AddrRange range) {
  uffdio_register reg{};
  reg.range = {range.start.value, range.size()};
  reg.mode = UFFDIO_REGISTER_MODE_WP;
  const long r = sys::call(__NR_ioctl, uffd_.get(), UFFDIO_REGISTER, &reg);
  if (r == 0) release_guard::note_registration();
  return r;
}

// To unregister memory the kernel looks at each page once more, and at its `struct page`: as dear as
// protecting it. The kernel does not look where memory is registered for missing pages only. So memory of
// which no page is protected any more is registered so first. A thread that touches a missing page in between
// waits, and unregistering wakes it.
void WriteProtection::remove(AddrRange range) {
  for (Addr at = range.start; at < range.end; at = at + kRemovedAtOnce) {
    uffdio_range piece{at.value, range.end - at < kRemovedAtOnce ? range.end - at : kRemovedAtOnce};
    if (protection_is_off({at, at + piece.len})) {
      uffdio_register missing{};
      missing.range = piece;
      missing.mode = UFFDIO_REGISTER_MODE_MISSING;
      sys::call(__NR_ioctl, uffd_.get(), UFFDIO_REGISTER, &missing);
    }
    sys::call(__NR_ioctl, uffd_.get(), UFFDIO_UNREGISTER, &piece);
  }
}

// Takes off what is left in a few places. False: there are many, or the kernel cannot tell.
bool WriteProtection::protection_is_off(AddrRange range) {
  if (!can_tell_) return false;
  constexpr int kFew = 32;
  for (int places = 0; places < kFew; ++places) {
    AddrRange left;
    const long found = first_protected(pagemap_, range, &left);
    if (found != 1) return found == 0;
    if (unprotect(left) != 0) return false;
    range.start = left.end;
    if (range.empty()) return true;
  }
  return false;
}

void WriteProtection::forget(AddrRange range) {
  // Told first: what has lost its protection without a word is taken for changed.
  if (Arming* arming = arming_.load(std::memory_order_acquire)) arming->removed(range);
  if (Copier* copier = copier_.load(std::memory_order_acquire)) copier->removed(range);
  remove({range.start.page_down(), range.end.page_up()});
}

long WriteProtection::write_protect(AddrRange range, uint64_t mode) {
  uffdio_writeprotect wp{};
  wp.range = {range.start.value, range.size()};
  wp.mode = mode;
  // EAGAIN: the address space is changing, nothing was done.
  constexpr uint32_t kPatience = 16;
  std::optional<MappingsBarred> barred;
  long r;
  for (uint32_t tries = 0; (r = sys::call(__NR_ioctl, uffd_.get(), UFFDIO_WRITEPROTECT, &wp)) == -EAGAIN;
       ++tries) {
    const bool serving = serves();
    if (serving && tries == kPatience) barred.emplace();
    // The serving thread may wait for a buffer that this thread has, and would not read the event.
    if (!serving) {
      if (Copier* copier = copier_.load(std::memory_order_acquire)) copier->let_events_be_read();
    }
    if (!serving || !read_messages()) sys::call(__NR_sched_yield);
  }
  return r;
}

bool WriteProtection::on_handler_thread() const {
  return thread_ != nullptr && thread_->block().contains(Addr::of(__builtin_frame_address(0)));
}

bool WriteProtection::serves() const {
  return on_handler_thread() || agent_serves_.load(std::memory_order_relaxed);
}

long WriteProtection::unprotect(AddrRange range) { return write_protect(range, 0); }

long WriteProtection::unprotect_many(AddrRange range) {
  const long r = unprotect(range);
  if (r != 0) return r;
  // The kernel passes over a hole. If the hole has been filled since, the second call finds memory there that
  // is not registered.
  return is_mapped(range) ? unprotect(range) : -ENOENT;
}

bool WriteProtection::still_protected(AddrRange range) {
  // Unmapping is announced where protection can be told at all (open()).
  return !can_tell_ ||
         (can_tell_fast_ ? is_protected_if_mapped(pagemap_, range) : is_protected(pagemap_, range)) == 1;
}

void WriteProtection::wake(AddrRange range) {
  uffdio_range r{range.start.value, range.size()};
  sys::call(__NR_ioctl, uffd_.get(), UFFDIO_WAKE, &r);
}

long WriteProtection::read(std::byte* to, Addr from, size_t bytes, bool readable) {
  // EPERM, ENOSYS: forbidden in this container, or by dumpable; the other way is always open to us.
  if (readable && copy_.copy(to, from, bytes)) return 0;
  for (size_t done = 0; done < bytes;) {
    long n = sys::call(__NR_pread64, memory_file_.get(), to + done, bytes - done, from.value + done);
    if (n <= 0) return -EFAULT;
    done += static_cast<size_t>(n);
  }
  return 0;
}

long WriteProtection::read_pieces(std::span<const CopyPiece> pieces, bool readable) {
  if (readable && copy_.copy(pieces)) return 0;
  return ProgramMemory::read_pieces(pieces, readable);
}

void WriteProtection::settle_events() {
  if (on_handler_thread()) return;
  // The thread that serves neither waits nor copies between reading an event and acting on it.
  while ((reading_.load(std::memory_order_seq_cst) & 1) != 0) sys::call(__NR_sched_yield);
}

void WriteProtection::begin_serving(Served served) {
  wanted_.store(1, std::memory_order_relaxed);
  serving_.lock();
  wanted_.store(0, std::memory_order_relaxed);
  futex_wake(wanted_);
  agent_serves_.store(true, std::memory_order_relaxed);
  if (served == Served::kAll)
    serve_all();
  else
    serve_waiting();
}

void WriteProtection::end_serving() {
  // Serve what was read and put aside: the serving thread would not hear of it. Events that are still queued
  // wake it from poll().
  read_messages();
  while (serve_backlog() || serve_releases()) {
  }
  agent_serves_.store(false, std::memory_order_relaxed);
  serving_.unlock();
}

void WriteProtection::serve(Copier* copier) {
  arming_.store(nullptr, std::memory_order_release);
  copier_.store(copier, std::memory_order_release);
}

void WriteProtection::serve(Arming& arming) {
  copier_.store(nullptr, std::memory_order_release);
  arming_.store(&arming, std::memory_order_release);
  counters_ = &no_counters_;
}

void WriteProtection::count_into(CopyCounters& counters) {
  Serving serving(*this);
  counters_ = &counters;
}

void WriteProtection::meanwhile() {
  if (!read_messages() && !serve_backlog()) sys::call(__NR_sched_yield);
}

void WriteProtection::read_events() {
  if (CHECK(serves())) read_messages();
}

Result<void> WriteProtection::start(RawThread& thread, Arming& arming, CopyCounters& counters, int pagemap) {
  thread_ = &thread;
  arming_.store(&arming, std::memory_order_release);
  counters_ = &counters;
  if (!own_memory_.reserve(kPageSize + kMaxWaiting * sizeof(Waiting))) {
    return make_error(ExitCode::kInternal, ENOMEM,
                      "no address space left for the list of faults; raise the limit (ulimit -v)");
  }
  bell_ = Addr::of(own_memory_.allocate(kPageSize, kPageSize));
  backlog_ = static_cast<Waiting*>(own_memory_.allocate(kMaxWaiting * sizeof(Waiting)));
  if (long r = add({bell_, bell_ + kPageSize}); r != 0) {
    thread_ = nullptr;
    return make_error(ExitCode::kSystem, static_cast<int>(r), "cannot register memory with userfaultfd ({})",
                      errno_name(static_cast<int>(r)));
  }
  // Holes are protected as well where protection goes on ahead of the stop.
  pagemap_ = pagemap;
  can_tell_ = can_protect_ahead_ && is_protected(pagemap_, {bell_, bell_ + kPageSize}) >= 0;
  can_tell_fast_ = can_tell_ && missing_are_written(pagemap_);
  backlog_head_ = backlog_count_ = 0;
  empty_since_ns_ = now_ns();
  copier_.store(nullptr, std::memory_order_relaxed);
  long r = thread_->spawn(&WriteProtection::handler_entry, this, DescriptorTable::kShareWithCaller);
  if (r == 0) {
    release_guard::begin(bell_);
    return {};
  }
  thread_ = nullptr;
  return make_error(ExitCode::kSystem, static_cast<int>(r),
                    "cannot start a thread ({}); raise the limit on processes",
                    errno_name(static_cast<int>(r)));
}

void WriteProtection::handler_entry(void* self) {
  const ScopedUrgency many_wait_at_pages(many_threads_run());
  static_cast<WriteProtection*>(self)->handle_events();
}

// Takes what is queued: acts on events, puts faults into the backlog. False: there was nothing.
bool WriteProtection::read_messages() {
  constexpr uint32_t kMost = 32;
  uffd_msg messages[kMost];
  const uint32_t room = kMaxWaiting - backlog_count_;
  if (room == 0) return false;
  const long asked = static_cast<long>(sizeof(uffd_msg)) * (room < kMost ? room : kMost);
  const int64_t asked_ns = now_ns();
  // seq_cst with settle_events(): the read itself lets the program's madvise go on.
  reading_.fetch_add(1, std::memory_order_seq_cst);
  const long n = sys::call(__NR_read, uffd_.get(), messages, asked);
  // Upper bound of the wait: the time since the queue was last empty, or since the poll that ended with these
  // messages. The time until the serving thread got a processor after that poll is missing.
  const int64_t since = empty_since_ns_;
  if (n < asked) empty_since_ns_ = asked_ns;
  if (n <= 0) {
    reading_.fetch_add(1, std::memory_order_seq_cst);
    return false;
  }
  for (size_t i = 0; i < static_cast<size_t>(n) / sizeof(uffd_msg); ++i) {
    const uffd_msg& m = messages[i];
    if (m.event == UFFD_EVENT_PAGEFAULT) {
      backlog_[(backlog_head_ + backlog_count_++) % kMaxWaiting] = {Addr{m.arg.pagefault.address}, since};
    } else if (m.event == UFFD_EVENT_REMOVE || m.event == UFFD_EVENT_UNMAP) {
      const AddrRange range{Addr{m.arg.remove.start}, Addr{m.arg.remove.end}};
      if (range.start == bell_) rung_ = true;
      if (Arming* arming = arming_.load(std::memory_order_acquire)) arming->removed(range);
      if (Copier* copier = copier_.load(std::memory_order_acquire)) copier->removed(range);
    }
  }
  reading_.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

bool WriteProtection::serve_backlog() {
  if (backlog_count_ == 0) return false;
  while (backlog_count_ != 0) {
    const Waiting w = backlog_[backlog_head_];
    backlog_head_ = (backlog_head_ + 1) % kMaxWaiting;
    --backlog_count_;
    if (Copier* copier = copier_.load(std::memory_order_acquire)) {
      copier->fault(w.address);
    } else if (Arming* arming = arming_.load(std::memory_order_acquire)) {
      arming->fault(w.address);
    } else {
      unprotect({w.address.page_down(), w.address.page_down() + kPageSize});
    }
    const auto waited = static_cast<uint64_t>(now_ns() - w.since_ns);
    counters_->all_waits_ns.fetch_add(waited, std::memory_order_relaxed);
    auto& longest = counters_->longest_wait_ns;
    if (waited > longest.load(std::memory_order_relaxed)) longest.store(waited, std::memory_order_relaxed);
  }
  return true;
}

bool WriteProtection::serve_releases() {
  if (!rung_) return false;
  rung_ = false;
  release_guard::serve(*this);
  return true;
}

void WriteProtection::serve_all() {
  while (serve_backlog() || read_messages() || serve_releases()) {
  }
}

void WriteProtection::handle_events() {
  bool stopping = false;
  for (;;) {
    {
      ScopedLock guard(serving_);
      if (stopping && backlog_count_ == 0 && !rung_ && !read_messages()) return;
      empty_since_ns_ = now_ns();
      // Not for ever, if threads fault as fast as they are served. The agent, which wants the lock, serves
      // the rest. relaxed: seen late, a few more are served; the lock orders all else.
      while (wanted_.load(std::memory_order_relaxed) == 0 &&
             (serve_backlog() || read_messages() || serve_releases())) {
      }
    }
    while (wanted_.load(std::memory_order_relaxed) != 0) futex_wait(wanted_, 1);
    // The events that were read have been acted on, here or by the agent, and nothing was queued.
    pollfd fds[2] = {{uffd_.get(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
    sys::call(__NR_poll, fds, 2, -1);
    stopping = (fds[1].revents & POLLIN) != 0;
  }
}

void WriteProtection::finish() {
  const bool served = thread_ != nullptr;
  if (served) {
    uint64_t one = 1;
    sys::call(__NR_write, stop_event_.get(), &one, sizeof(one));
    thread_->join();
    thread_ = nullptr;
  }
  // Takes off what is left, and wakes all that wait. Until then some memory may be protected, and a thread
  // that gives the kernel a word to write must know that.
  uffd_.reset();
  if (served) release_guard::end();
  stop_event_.reset();
  memory_file_.reset();
}

}  // namespace ckpt
