// Write protection of the program's memory by userfaultfd, and the thread that serves the faults.
//
// Owner:     libckpt_rt. One WriteProtection is one userfaultfd: one checkpoint's, or one watch's (watch.h).
// Callers:   the agent: open, add, protect, serve, finish. The serving thread runs handle_events().
// Never:     the serving thread and the copier touch protected memory themselves; all they use lies
//            in ranges of our own or is copied through the kernel.
//
// Registration is what makes the copy trustworthy: only mappings that were registered with this
// userfaultfd accept unprotect(). Memory that was unmapped, mapped over, or moved by mremap has lost the
// registration (UFFD_FEATURE_EVENT_REMAP is not asked for). For memory mapped afterwards at the same place
// unprotect() fails with ENOENT. Where nothing is mapped the kernel passes over the hole without a word
// (UserfaultfdTest.UnprotectingPassesOverAHole): there unprotect() proves nothing. Where success is the only
// proof, unprotect_many() therefore looks a second time: is all of the range mapped, and does it accept
// unprotect() once more? Memory that fills the hole in between is not registered, and fails.
// madvise(DONTNEED, FREE, REMOVE) keeps the registration: for these the kernel sends a remove event and makes
// the caller wait until we have read it, before the pages go (UFFD_FEATURE_EVENT_REMOVE).
//
// While such an event is on its way, UFFDIO_WRITEPROTECT fails with EAGAIN. Only the thread that serves reads
// events. When it meets EAGAIN itself, it reads what is queued, acts on the events and puts the faults aside;
// else it would wait for itself.
//
// When another thread meets EAGAIN, the serving thread may be waiting for a buffer of a forced copy, and that
// other thread may have all the buffers. So each EAGAIN of a thread that does not serve ends this wait for a
// moment (Copier::let_events_be_read), and the serving thread reads the events (read_events). Only the
// thread that serves comes to read_events(): Copier::fault() is called by serve_backlog() alone,
// Copier::before_release() by serve_releases() alone (release_guard::serve), both with the lock of serving.
// Copier::make_writable() is called under guard, where memory has no events. To read is not to serve: faults
// are put aside. Copier::removed() never waits, so settle_events() holds here as well.
//
// Serving is the serving thread's business, under a lock, which it gives away when the agent wants it. Ahead
// of the stop (arming.h) the agent takes the lock where it must not be disturbed, and in the stop it takes
// over: it serves what there is and decides undisturbed. From the stop to the end of the copying the serving
// thread serves alone, and may wait for a buffer while it holds the lock.
#pragma once

#include <linux/userfaultfd.h>

#include "base/locks/futex.h"
#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "base/units.h"
#include "copier/copier.h"
#include "libckpt_rt/core/kernel/kernel_copy.h"
#include "libckpt_rt/core/threads/of_ours/raw_thread.h"
#include "libckpt_rt/protect/armed_memory.h"
#include "libckpt_rt/protect/arming.h"

namespace ckpt {

class WriteProtection final : public ProgramMemory, public ArmedMemory {
 public:
  // kUnavailable: this machine does not allow full userfaultfd; the error says what would.
  Result<void> open();
  AddrRange own_range() const { return own_memory_.range(); }
  // The kernel protects holes and tells what is unmapped (Linux 6.4): protection ahead of the stop can be
  // trusted.
  bool can_protect_ahead() const { return can_protect_ahead_; }
  long add(AddrRange range) override;
  // The kernel takes it for ordinary memory again; in pieces, for no thread can map memory or fault
  // meanwhile.
  void remove(AddrRange range);
  static constexpr uint64_t kRemovedAtOnce = 64 << 20;
  // The same for a thread that asks for it, after arming and copier were told. Called by the thread that
  // serves.
  void forget(AddrRange range);
  long protect(AddrRange range) override { return write_protect(range, UFFDIO_WRITEPROTECT_MODE_WP); }

  // Starts the thread that serves faults, before the first add(): events may come from then on. The events go
  // to `arming`.
  Result<void> start(RawThread& thread, Arming& arming, CopyCounters& counters, int pagemap);
  // Faults and events go to this copier from now on, or nowhere (then faults are just let go).
  void serve(Copier* copier);
  // Before serve(copier): copies into these buffers are made the cheaper way (KernelCopy::use_for).
  void copy_into(AddrRange buffers) { copy_.use_for(buffers); }
  // To `arming` again. Called by the thread that serves.
  void serve(Arming& arming);
  // Of the checkpoint under way.
  void count_into(CopyCounters& counters);
  // Every event that was read has been acted on when this returns; waiting threads are woken, all
  // protection is gone (the kernel takes it off all at once, unless remove() has before).
  void finish();

  void serve_waiting() override {
    read_messages();
    serve_backlog();
    serve_releases();
  }
  size_t batch() const override { return 32; }
  bool kernel_waits() const override { return true; }
  void each_busy(void (*)(void*, AddrRange), void*) override {}

  long read(std::byte* to, Addr from, size_t bytes, bool readable) override;
  long read_pieces(std::span<const CopyPiece> pieces, bool readable) override;
  long unprotect(AddrRange range) override;
  long unprotect_many(AddrRange range) override;
  bool unprotecting_proves() const override { return !can_tell_; }
  bool still_protected(AddrRange range) override;
  void wake(AddrRange range) override;
  void settle_events() override;
  void meanwhile() override;
  void read_events() override;

 private:
  void begin_serving(Served served) override;
  void end_serving() override;
  static void handler_entry(void* self);
  void handle_events();
  // Both with the lock held. False: there was nothing.
  bool read_messages();
  bool serve_backlog();
  bool serve_releases();
  void serve_all();
  bool on_handler_thread() const;
  // Does the caller serve: the serving thread, or the agent with the lock?
  bool serves() const;
  bool protection_is_off(AddrRange range);
  long write_protect(AddrRange range, uint64_t mode);
  Result<ScopedFd> open_with(uint64_t features);

  ScopedFd uffd_, stop_event_, memory_file_;
  KernelCopy copy_;
  bool can_protect_ahead_ = false;
  int pagemap_ = -1;
  bool can_tell_ = false;  // what is protected
  bool can_tell_fast_ = false;
  RawThread* thread_ = nullptr;
  FutexLock<LockRank::kServing> serving_;
  FutexWord wanted_{0};                    // 1: the agent waits for the lock
  std::atomic<bool> agent_serves_{false};  // the agent holds the lock
  std::atomic<Arming*> arming_{nullptr};   // until the stop
  std::atomic<Copier*> copier_{nullptr};   // from the stop on
  CopyCounters no_counters_;
  CopyCounters* counters_ = &no_counters_;
  // Odd while messages are read and their events have not been acted on yet.
  std::atomic<uint32_t> reading_{0};

  // Under the lock: faults read and not yet served. No thread has more than one.
  static constexpr uint32_t kMaxWaiting = 32 << 10;
  struct Waiting {
    Addr address;
    int64_t since_ns;
  };
  Arena own_memory_;
  Addr bell_{};  // a page whose giving back means: look at release_guard's requests
  bool rung_ = false;
  Waiting* backlog_ = nullptr;
  uint32_t backlog_head_ = 0, backlog_count_ = 0;
  int64_t empty_since_ns_ = 0;
};

}  // namespace ckpt
