// Write protection of the program's memory by userfaultfd, and the thread that serves the faults.
//
// Owner:     libckpt_rt. One WriteProtection is one checkpoint's userfaultfd.
// Callers:   the agent: open, add, protect, serve, finish. The handler thread runs inside serve().
// Never:     the handler thread and the copier touch protected memory themselves; all they use lies
//            in ranges of our own or is copied through the kernel.
//
// Registration is what makes the copy trustworthy: only mappings that were registered with this
// userfaultfd accept unprotect(). Memory that was unmapped, mapped over, or moved by mremap loses the
// registration (UFFD_FEATURE_EVENT_REMAP is not asked for), and unprotect() of it fails with ENOENT.
// madvise(DONTNEED, FREE, REMOVE) keeps the registration: for these the kernel sends a remove event and
// makes the caller wait until we have read it, before the pages go (UFFD_FEATURE_EVENT_REMOVE).
//
// While such an event is on its way, UFFDIO_WRITEPROTECT fails with EAGAIN. Only the handler thread
// reads events: when it meets EAGAIN itself it reads what there is, acts on the events and puts the
// faults aside, or it would wait for itself.
#pragma once

#include "base/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "base/units.h"
#include "copier/copier.h"
#include "libckpt_rt/raw_thread.h"

namespace ckpt {

class WriteProtection final : public ProgramMemory {
 public:
  // kUnavailable: this machine does not allow full userfaultfd; the error says what would.
  Result<void> open();
  AddrRange own_range() const { return backlog_memory_.range(); }
  // -EINVAL: the kernel cannot protect this mapping. Adding again what is added is fine.
  long add(AddrRange range);
  Result<void> protect(AddrRange range);

  // Starts the thread that serves faults, before the first add(): events may come from then on.
  Result<void> start(RawThread& thread);
  // Faults go to this copier from now on.
  void serve(Copier* copier) { copier_.store(copier, std::memory_order_release); }
  // Every event that was read has been acted on when this returns; waiting threads are woken, all
  // protection is gone.
  void finish();

  long read(std::byte* to, Addr from, size_t bytes, bool readable) override;
  long unprotect(AddrRange range) override;
  void wake(AddrRange range) override;
  void settle_events() override;

 private:
  static void handler_entry(void* self);
  void handle_events();
  bool read_messages();
  bool on_handler_thread() const;
  long write_protect(AddrRange range, uint64_t mode);

  ScopedFd uffd_, stop_event_, memory_file_;
  RawThread* thread_ = nullptr;
  std::atomic<Copier*> copier_{nullptr};
  // Odd while the handler thread reads messages and has not acted on their events yet.
  std::atomic<uint32_t> reading_{0};

  // The handler thread's: faults read and not yet served. No thread has more than one.
  static constexpr uint32_t kMaxWaiting = 32 << 10;
  struct Waiting {
    Addr address;
    int64_t since_ns;
  };
  Arena backlog_memory_;
  Waiting* backlog_ = nullptr;
  uint32_t backlog_head_ = 0, backlog_count_ = 0;
  int64_t empty_since_ns_ = 0;
};

}  // namespace ckpt
