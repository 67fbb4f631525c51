// What CheckpointRun does with a fault back end whose faults are handled in the thread itself
// (docs/fault_back_ends.md).
#include <errno.h>
#include <linux/kcmp.h>

#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/checkpoint/run.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/core/task_list.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/memory/gate.h"

namespace ckpt {

Error CheckpointRun::refuse(const char* why) {
  refused_ = true;
  return make_error(ExitCode::kUnavailable, 0,
                    "CKPT_FAULTS={} cannot be used for this program: {}; another way is taken",
                    fault_back_end_name(back_end_), why);
}

Result<void> CheckpointRun::prepare_guard(uint64_t list_bytes) {
  if (callbacks::any(CKPT_RT_AFTER_CHECKPOINT))
    return refuse("it has functions that run in the stop (ckpt_rt_callback)");
  auto prepared = guard::prepare();
  refused_ = !prepared.ok();
  CKPT_TRY(std::move(prepared));
  // Functions that run in the stop write to memory; there nobody could handle the fault.
  ahead_ = GuardedMemory::can_protect_ahead(back_end_) && !callbacks::any(CKPT_RT_BEFORE_CHECKPOINT);
  return guarded_arena_.reserve(list_bytes) ? Result<void>() : no_memory("the checkpoint's lists");
}

Result<void> CheckpointRun::get_ready_for_guard() {
  ArenaVector<Addr> stacks(arena_);
  waiting_.clear();
  if (!list_waiting(arena_, stacks, waiting_)) return no_memory("the list of threads");
  if (ahead_) {
    CKPT_TRY(open_guard_ahead());
    if (guard_open_) return protect_ahead();
    ahead_ = false;
  }
  // Memory that went since the map was read cannot be looked at. Room is then made in the pause.
  [[maybe_unused]] const Result<void> prepared = prepare_eager_copies(map_before_, stacks.size());
  return get_ready();
}

// The descriptor by which each unprotects what it writes to is in one table.
bool CheckpointRun::share_descriptors(const ThreadSlot* stopped) {
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    if (s != stopped && sys::call(__NR_kcmp, stopped->tid, s->tid, KCMP_FILES, 0L, 0L) != 0) return false;
  }
  return true;
}

// A short stop: all threads go under guard, and nothing is protected yet.
Result<void> CheckpointRun::open_guard_ahead() {
  if (map_before_.has_pinned_pages())
    return refuse("a ring, an asynchronous read or a device writes to its memory");
  CKPT_TRY(arming_.prepare(guarded_arena_, library.settings.segment_bytes));
  arming_.limit(now_ns() + library.settings.stop_timeout_ns);
  const int own_tids[] = {sys::gettid(), library.writer.tid()};
  int stuck = 0;
  auto stopped = library.world.stop(
      {own_tids, waiting_.span(), library.signal, library.settings.stop_timeout_ns}, arena_, &stuck);
  if (!stopped.ok()) return stopped.error();
  auto open = [&]() -> Result<void> {
    if (const char* why = guard::refuses(stopped->first)) return refuse(why);
    if (!share_descriptors(stopped->first)) {
      log_line(directory_.get(),
               "a thread has descriptors of its own, or kcmp(2) cannot tell: memory is protected in the "
               "stop, which lasts longer");
      return {};
    }
    auto opened = guarded_.open_stopped(back_end_, true, stopped->first, guarded_arena_);
    refused_ = !opened.ok();
    CKPT_TRY(std::move(opened));
    if (!keep_open(stopped->first)) {
      guarded_.end_stopped(stopped->first);
      return no_memory("the list of pages that are not protected");
    }
    descriptors_.hide(guarded_.descriptor());
    guard::open_stopped(copier_, guarded_.faults(), &arming_, &guarded_);
    guard_open_ = true;
    return {};
  };
  const Result<void> opened = open();
  library.world.release();
  opened_in_ns_ = library.world.resumed_ns(now_ns()) - stopped->began_ns;
  if (guard_open_) guard::await_enlisted(stopped->count);
  return opened;
}

// What the kernel writes to without a system call of the thread.
bool CheckpointRun::keep_open(const ThreadSlot* stopped) {
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    if (s->clear_child_tid != 0 && !guarded_.keep_open(Addr{s->clear_child_tid}.page_down())) return false;
    if (s->rseq == 0) continue;
    const Addr first = Addr{s->rseq}.page_down(), last = Addr{s->rseq + s->rseq_len - 1}.page_down();
    if (!guarded_.keep_open(first) || (last != first && !guarded_.keep_open(last))) return false;
  }
  return true;
}

// First thing in the stop: the image's instant knows of no guard. Memory stays protected.
void CheckpointRun::leave_guard_stopped(ThreadSlot* thread, bool give_up) {
  guard::close_stopped();
  guard_open_ = false;
  if (!give_up && !callbacks::any(CKPT_RT_BEFORE_CHECKPOINT)) return;
  // Registered just now: they run in the stop, and write to memory.
  guarded_.end_stopped(thread);
  descriptors_.hide(-1);
  ahead_ = false;
}

// The last thing in the stop.
Result<void> CheckpointRun::settle_guarded() {
  if (callbacks::any(CKPT_RT_AFTER_CHECKPOINT))
    return refuse("it has functions that run in the stop (ckpt_rt_callback)");
  if (map_.has_pinned_pages()) return refuse("a ring, an asynchronous read or a device writes to its memory");
  if (ahead_) {
    CKPT_TRY(settle_protection());
    guard::reopen_stopped(copier_);
    guard_open_ = guard_copies_ = true;
    return {};
  }
  if (const char* why = guard::refuses(library.stopped_threads)) return refuse(why);
  map_.copy_special_pages_eagerly();
  auto begun = guarded_.open_stopped(back_end_, false, library.stopped_threads, arena_);
  if (!begun.ok()) {
    refused_ = true;
    return begun.error();
  }
  CKPT_TRY(guarded_.add_stopped(map_.mappings()));
  CKPT_TRY(protect_for_guard());
  guard::open_stopped(copier_, guarded_.faults(), nullptr, &guarded_);
  guard_open_ = guard_copies_ = true;
  return {};
}

bool CheckpointRun::add_rseq_pages() {
  for (const ThreadSlot* s = library.stopped_threads; s != nullptr; s = s->next) {
    if (s->rseq == 0) continue;
    const Addr first = Addr{s->rseq}.page_down(), last = Addr{s->rseq + s->rseq_len - 1}.page_down();
    if (!open_pages_.push_back(first) || !open_pages_.push_back(last)) return false;
  }
  return true;
}

Result<void> CheckpointRun::protect_for_guard() {
  CKPT_TRY(list_pages());
  if (!add_stack_pages() || !futex_words::collect(library.stopped_threads, still_memory_, open_pages_)) {
    return no_memory("the list of pages that are not protected");
  }
  if (!add_rseq_pages()) return no_memory("the list of pages");
  // Around them all of a segment is copied now: a stack that its thread goes on with.
  for (Addr page : open_pages_) {
    SegmentId id;
    if (!table_.find(page, &id) || table_.state(id) != SegmentState::kProtected) continue;
    const Segment& s = table_[id];
    for (uint64_t left = s.present; left != 0;) {
      const int first = std::countr_zero(left), count = std::countr_one(left >> first);
      const AddrRange run{s.base + static_cast<uint64_t>(first) * kPageSize,
                          s.base + static_cast<uint64_t>(first + count) * kPageSize};
      CKPT_TRY(add_eager({&run, 1}));
      left &= count + first >= 64 ? 0 : ~0ull << (first + count);
    }
    table_.clear_present(table_.window(s));
    table_.set(id, SegmentState::kCopied);
  }
  // Segments side by side are protected at once.
  constexpr uint64_t kAtOnce = 8 << 20;
  auto next_run = [this](SegmentId& id, AddrRange* run) {
    while (id.value < table_.size() && table_.state(id) != SegmentState::kProtected) ++id.value;
    if (id.value == table_.size()) return false;
    *run = table_.window(table_[id]);
    const uint32_t region = table_[id].region;
    while (++id.value < table_.size() && table_.state(id) == SegmentState::kProtected &&
           table_[id].region == region && table_.window(table_[id]).start == run->end &&
           run->size() < kAtOnce) {
      run->end = table_.window(table_[id]).end;
    }
    return true;
  };
  size_t runs = 0;
  AddrRange run;
  for (SegmentId id{0}; next_run(id, &run);) ++runs;
  if (back_end_ == FaultBackEnd::kMprotect && !GuardedMemory::has_room_for(runs, map_.mappings().size())) {
    return refuse("its memory is scattered over too many mappings (vm.max_map_count)");
  }
  for (SegmentId id{0}; next_run(id, &run);) {
    if (const long r = guarded_.protect(run); r != 0) {
      return make_error(ExitCode::kInternal, static_cast<int>(r), "cannot write-protect {:#x}-{:#x} ({})",
                        run.start.value, run.end.value, errno_name(static_cast<int>(r)));
    }
  }
  ends(kProtection);
  CKPT_TRY(copy_eagerly());
  ends(kCopies);
  return {};
}

// After a failure: nothing is protected when this returns, and nobody is under guard.
void CheckpointRun::undo_guard() {
  if (guard_open_) return close_guard();
  if (!guarded_.is_open()) return;
  // In the stop. What is taken from mappings is known by the table.
  if (back_end_ == FaultBackEnd::kMprotect) copier_.unprotect_rest();
  guarded_.end_stopped(library.stopped_threads);
}

// Mapping by mapping, exactly as they are now: the program has changed some since they were registered, and
// whoever has one cut in two cannot mremap(2) it. The gate is held as long as the list of mappings is gone
// by, hence not for all at once.
void CheckpointRun::take_registration_off() {
  if (back_end_ != FaultBackEnd::kInThread) return;
  constexpr uint64_t kAtOnce = 64 << 20;
  Arena scratch;
  for (Addr from{0};;) {
    if (!scratch.reserve(64 << 20)) return;  // the descriptor's end will do it
    MappingsHeld held;
    MemoryMap now(scratch);
    if (!held.sure() || !now.read(own_.span()).ok()) return;
    uint64_t done = 0;
    for (const Mapping& m : now.mappings()) {
      if (m.range.start < from || m.handling != Handling::kTracked) continue;
      if (done >= kAtOnce) break;
      guarded_.remove(m.range);
      done += m.range.size();
      from = m.range.end;
    }
    if (done == 0) return;
    scratch.release();
  }
}

// All is copied, or the attempt is given up. Returns when no thread of the program is under guard any more.
void CheckpointRun::close_guard() {
  // Ahead of the stop the table is the threads' as well; memory that is not registered is not protected.
  if (guard_copies_) copier_.unprotect_rest();
  take_registration_off();
  Arena scratch;
  int own_tids[] = {sys::gettid(), library.writer.tid()};
  for (bool logged = false;; scratch.release()) {
    int stuck = 0;
    // Unlike other failures this one cannot be passed on: threads would stay under guard, which costs time
    // and no more.
    if (!scratch.reserve(16 << 20)) {
      sys::call(__NR_sched_yield);
      continue;
    }
    auto stopped =
        library.world.stop({own_tids, {}, library.signal, library.settings.stop_timeout_ns}, scratch, &stuck);
    if (!stopped.ok()) {
      if (!logged)
        log_format(directory_.get(), "the guard stays open a while: {}", stopped.error().message());
      logged = true;
      continue;
    }
    guard::close_stopped();
    guarded_.end_stopped(stopped->first);
    guard_open_ = false;
    library.world.release();
    const int64_t pause = library.world.resumed_ns(now_ns()) - stopped->began_ns;
    const guard::Counters c = guard::counters();
    log_format(directory_.get(),
               "faults {}: {} faults, longest {} us; {} system calls passed the guard, {} waited for its "
               "end, longest {} us; {} "
               "signals; the stops that begin and end it {} and {} us",
               fault_back_end_name(back_end_), copier_.counters().faults.load(),
               copier_.counters().longest_wait_ns.load() / 1000, c.calls, c.waited, c.longest_wait_ns / 1000,
               c.signals, opened_in_ns_ / 1000, pause / 1000);
    return;
  }
}

}  // namespace ckpt
