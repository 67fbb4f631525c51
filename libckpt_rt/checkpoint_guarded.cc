// What CheckpointRun does with a fault back end whose faults are handled in the thread itself
// (docs/fault_back_ends.md).
#include <errno.h>

#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "libckpt_rt/checkpoint_run.h"
#include "libckpt_rt/futex_words.h"
#include "libckpt_rt/guard.h"
#include "libckpt_rt/library.h"
#include "libckpt_rt/log.h"
#include "libckpt_rt/task_list.h"

namespace ckpt {

Error CheckpointRun::refuse(const char* why) {
  refused_ = true;
  return make_error(ExitCode::kUnavailable, 0,
                    "CKPT_FAULTS={} cannot be used for this program: {}; another way is taken",
                    fault_back_end_name(back_end_), why);
}

Result<void> CheckpointRun::prepare_guard() {
  if (callbacks::any(CKPT_RT_AFTER_CHECKPOINT))
    return refuse("it has functions that run in the stop (ckpt_rt_callback)");
  auto prepared = guard::prepare();
  refused_ = !prepared.ok();
  return prepared;
}

Result<void> CheckpointRun::get_ready_for_guard() {
  ArenaVector<Addr> stacks(arena_);
  waiting_.clear();
  if (!list_waiting(arena_, stacks, waiting_)) return no_memory("the list of threads");
  // Memory that went since the map was read cannot be looked at. Room is then made in the pause.
  [[maybe_unused]] const Result<void> prepared = prepare_eager_copies(map_before_, stacks.size());
  return get_ready();
}

// The last thing in the stop, as settle_protection() is.
Result<void> CheckpointRun::settle_guarded() {
  if (map_.has_pinned_pages()) return refuse("a ring, an asynchronous read or a device writes to its memory");
  if (const char* why = guard::refuses(library.stopped_threads)) return refuse(why);
  map_.copy_special_pages_eagerly();
  auto begun = guarded_.begin_stopped(back_end_, library.stopped_threads, arena_, map_.mappings());
  if (!begun.ok()) {
    refused_ = true;
    return begun.error();
  }
  const Result<void> settled = protect_for_guard();
  if (settled.ok()) {
    guard::open_stopped(copier_, guarded_.faults());
    return {};
  }
  copier_.unprotect_rest();
  guarded_.end_running();
  guarded_.end_stopped(library.stopped_threads);
  return settled;
}

Result<void> CheckpointRun::protect_for_guard() {
  CKPT_TRY(list_pages());
  if (!add_stack_pages() || !futex_words::collect(library.stopped_threads, still_memory_, open_pages_)) {
    return no_memory("the list of pages that are not protected");
  }
  for (const ThreadSlot* s = library.stopped_threads; s != nullptr; s = s->next) {
    if (s->rseq == 0) continue;
    const Addr first = Addr{s->rseq}.page_down(), last = Addr{s->rseq + s->rseq_len - 1}.page_down();
    if (!open_pages_.push_back(first) || !open_pages_.push_back(last)) return no_memory("the list of pages");
  }
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

// All is copied, or the attempt is given up. Returns when no thread of the program is under guard any more.
void CheckpointRun::close_guard() {
  copier_.unprotect_rest();
  guarded_.end_running();
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
    library.world.release();
    const int64_t pause = library.world.resumed_ns(now_ns()) - stopped->began_ns;
    const guard::Counters c = guard::counters();
    log_format(directory_.get(),
               "faults {}: {} faults, longest {} us; {} system calls passed the guard, {} waited for its "
               "end, longest {} us; {} "
               "signals; the stop that ends it {} us",
               fault_back_end_name(back_end_), copier_.counters().faults.load(),
               copier_.counters().longest_wait_ns.load() / 1000, c.calls, c.waited, c.longest_wait_ns / 1000,
               c.signals, pause / 1000);
    return;
  }
}

}  // namespace ckpt
