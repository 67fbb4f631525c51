#include "libckpt_rt/checkpoint/back_ends/guard.h"

#include <errno.h>
#include <linux/kcmp.h>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/memory/page_runs.h"
#include "libckpt_rt/checkpoint/stages/callbacks.h"
#include "libckpt_rt/checkpoint/stages/memory/page_list.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/threads/own_dispatch.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr size_t kClosingBytes = 16 << 20;

// Do all threads share the table with the descriptor by which each unprotects what it writes to?
bool share_descriptors(const ThreadSlot* stopped) {
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    if (s != stopped && sys::call(__NR_kcmp, stopped->tid, s->tid, KCMP_FILES, 0L, 0L) != 0) return false;
  }
  return true;
}

}  // namespace

Error GuardBackEnd::refuse(const char* why) {
  attempt_.outcome.refused = true;
  return make_error(ExitCode::kUnavailable, 0,
                    "CKPT_FAULTS={} cannot be used for this program: {}; another way is taken",
                    guarded_.name(), why);
}

const char* GuardBackEnd::why_no_increments() const {
  return "with this fault back end (CKPT_FAULTS) protection ends with the copying";
}

Result<void> GuardBackEnd::open(const Room& room) {
  if (callbacks::any(CKPT_RT_AFTER_CHECKPOINT))
    return refuse("it has functions that run in the stop (ckpt_rt_callback)");
  if (own_dispatch::is_used())
    return refuse("it catches system calls itself (PR_SET_SYSCALL_USER_DISPATCH), as the guard does");
  auto prepared = guard::prepare();
  attempt_.outcome.refused = !prepared.ok();
  CKPT_TRY(std::move(prepared));
  // Functions that run in the stop write to memory; there nobody could handle the fault.
  ahead_ = guarded_.can_protect_ahead() && !callbacks::any(CKPT_RT_BEFORE_CHECKPOINT);
  return arena_.reserve(room.list_bytes) && closing_.reserve(kClosingBytes)
             ? Result<void>()
             : no_memory("the checkpoint's lists");
}

void GuardBackEnd::add_own_ranges() {
  ProtectingBackEnd::add_own_ranges();
  for (const AddrRange range : {arena_.range(), closing_.range()}) {
    if (attempt_.space.own(range)) hide_from_children(range);
  }
}

Result<void> GuardBackEnd::get_ready() {
  guarded_.copy_into(filled_from_own_side());
  CKPT_TRY(writer_.spawn());
  Arena& lists = attempt_.space.arena();
  ArenaVector<Addr> stacks(lists);
  attempt_.capture.waiting.clear();
  if (!list_waiting(lists, stacks, attempt_.capture.waiting)) return no_memory("the list of threads");
  if (ahead_) {
    CKPT_TRY(open_ahead());
    if (open_) return protect_ahead();
    ahead_ = false;
  }
  // Memory that went since the map was read cannot be looked at. Room is then made in the pause.
  [[maybe_unused]] const Result<void> prepared =
      attempt_.eager.make_room(attempt_.capture.map_before, attempt_.capture.pages, stacks.size(),
                               attempt_.space, attempt_.watch.spare);
  return get_all_ready();
}

// A ring or a read that was made since the guard was opened waits for its end; an older one may not have been
// mapped when it was opened.
Result<void> GuardBackEnd::accept(const MemoryMap& now) {
  return now.has_pinned_pages()
             ? Result<void>(refuse("a ring, an asynchronous read or a device writes to its memory"))
             : Result<void>();
}

// A short stop: all threads go under guard, and nothing is protected yet.
Result<void> GuardBackEnd::open_ahead() {
  CKPT_TRY(accept(attempt_.capture.map_before));
  CKPT_TRY(arming_.prepare(arena_, attempt_.in_force.segment_bytes));
  arming_.limit(now_ns() + attempt_.settings.stop_timeout_ns);
  const RunningOwnThreads ours;
  int stuck = 0;
  auto stopped = stop_state.world.stop(
      {ours.ids(), attempt_.capture.waiting.span(), own_signal.number, attempt_.settings.stop_timeout_ns},
      attempt_.space.arena(), &stuck);
  if (!stopped.ok()) return stopped.error();
  const Result<void> opened = open_ahead_stopped(stopped->first);
  stop_state.world.release();
  opened_in_ns_ = stop_state.world.resumed_ns(now_ns()) - stopped->began_ns;
  if (open_) guard::await_enlisted(stopped->count);
  points::at("guard.opened");
  return opened;
}

Result<void> GuardBackEnd::open_ahead_stopped(ThreadSlot* first) {
  if (const char* why = guard::refuses(first)) return refuse(why);
  if (!share_descriptors(first)) {
    log_line(attempt_.space.log(),
             "a thread has descriptors of its own, or kcmp(2) cannot tell: memory is protected in the "
             "stop, which lasts longer");
    return {};
  }
  auto opened = guarded_.open_stopped(true, first, arena_);
  attempt_.outcome.refused = !opened.ok();
  CKPT_TRY(std::move(opened));
  if (!leave_open(first)) {
    guarded_.end_stopped(first);
    return no_memory("the list of pages that are not protected");
  }
  attempt_.capture.descriptors.hide(guarded_.descriptor());
  guard::open_stopped(copier_, guarded_.faults(), &arming_, &guarded_);
  open_ = true;
  return {};
}

// Memory to which the kernel writes without a system call of the thread.
bool GuardBackEnd::leave_open(const ThreadSlot* stopped) {
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    if (s->clear_child_tid != 0 && !guarded_.leave_open(Addr{s->clear_child_tid}.page_down())) return false;
    if (s->rseq == 0) continue;
    const Addr first = Addr{s->rseq}.page_down(), last = Addr{s->rseq + s->rseq_len - 1}.page_down();
    if (!guarded_.leave_open(first) || (last != first && !guarded_.leave_open(last))) return false;
  }
  return true;
}

// A thread inside a critical section may wait for the end of the guard, to make a thread for example.
bool GuardBackEnd::stood_in_vain(ThreadSlot* first) {
  if (!open_) return true;
  log_line(attempt_.space.log(),
           "a thread is in its critical section: memory is protected in the stop, which lasts longer");
  leave_stopped(first, true);
  return false;
}

void GuardBackEnd::threads_stand(ThreadSlot* first) {
  if (open_) leave_stopped(first, false);
}

// First thing in the stop: the image's instant knows of no guard. Memory stays protected.
void GuardBackEnd::leave_stopped(ThreadSlot* first, bool give_up) {
  guard::close_stopped();
  open_ = false;
  if (!give_up && !callbacks::any(CKPT_RT_BEFORE_CHECKPOINT)) return;
  // Callbacks registered just now run in the stop, and write to memory.
  guarded_.end_stopped(first);
  attempt_.capture.descriptors.hide(-1);
  ahead_ = false;
}

Result<void> GuardBackEnd::capture_memory() {
  if (callbacks::any(CKPT_RT_AFTER_CHECKPOINT))
    return refuse("it has functions that run in the stop (ckpt_rt_callback)");
  CKPT_TRY(accept(attempt_.capture.map));
  if (!ahead_) return capture_in_stop();
  CKPT_TRY(settle_protection());
  guard::reopen_stopped(copier_);
  open_ = copies_ = true;
  return {};
}

// Nothing was protected ahead: all of it now.
Result<void> GuardBackEnd::capture_in_stop() {
  if (const char* why = guard::refuses(stop_state.threads)) return refuse(why);
  ProcessCapture& capture = attempt_.capture;
  Arena& lists = attempt_.space.arena();
  capture.map.copy_special_pages_eagerly();
  auto begun = guarded_.open_stopped(false, stop_state.threads, lists);
  if (!begun.ok()) {
    attempt_.outcome.refused = true;
    return begun.error();
  }
  CKPT_TRY(guarded_.add_stopped(capture.map.mappings()));
  CKPT_TRY(list_pages(capture, attempt_.in_force.segment_bytes, attempt_.space, table_, &attempt_.eager));
  if (!queue_.reserve(lists, static_cast<uint32_t>(pool_.buffers() + 1)))
    return no_memory("the queue of buffers");
  if (!open_pages_.collect(stop_state.threads, capture.still_memory))
    return no_memory("the list of pages that are not protected");
  CKPT_TRY(copy_open_segments());
  CKPT_TRY(protect_table());
  points::at("guard.protected");
  attempt_.clock.end(StopClock::kProtection);
  CKPT_TRY(attempt_.eager.copy(capture.map, capture.still_memory));
  attempt_.clock.end(StopClock::kCopies);
  guard::open_stopped(copier_, guarded_.faults(), nullptr, &guarded_);
  open_ = copies_ = true;
  return {};
}

// Around open pages all of a segment is copied now: a stack that its thread goes on with.
Result<void> GuardBackEnd::copy_open_segments() {
  for (Addr page : open_pages_.span()) {
    SegmentId id;
    if (!table_.find(page, &id) || table_.state(id) != SegmentState::kProtected) continue;
    const Segment& s = table_[id];
    for (PageRun run : PageRuns(s.present)) {
      const AddrRange pages = run.at(s.base);
      CKPT_TRY(attempt_.eager.add({&pages, 1}));
    }
    table_.clear_present(table_.window(s));
    table_.set(id, SegmentState::kCopied);
  }
  return {};
}

// Segments side by side are protected at once.
Result<void> GuardBackEnd::protect_table() {
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
  if (!guarded_.has_room_for(runs, attempt_.capture.map.mappings().size()))
    return refuse("its memory is scattered over too many mappings (vm.max_map_count)");
  for (SegmentId id{0}; next_run(id, &run);) {
    if (const long r = guarded_.protect(run); r != 0) {
      return make_error(ExitCode::kInternal, static_cast<int>(r), "cannot write-protect {:#x}-{:#x} ({})",
                        run.start.value, run.end.value, errno_name(static_cast<int>(r)));
    }
  }
  return {};
}

Result<void> GuardBackEnd::after_copying() {
  // Of the stop that was the image's: closing the guard takes another.
  late_ = ask_for_late_signal();
  close();
  points::at("guard.closed");
  return {};
}

// After a failure: nothing is protected when this returns, and nobody is under guard.
void GuardBackEnd::release_faults() {
  if (open_ && !attempt_.stop.stands()) return close();
  if (!guarded_.is_open()) return;
  // In the stop: of a job, another member can fail when the guard is open already. The table knows from which
  // mappings the right to write was taken.
  if (guarded_.cuts_mappings() || copies_) copier_.unprotect_rest();
  if (open_) guard::close_stopped();
  open_ = false;
  guarded_.end_stopped(stop_state.threads);
}

// Mapping by mapping, exactly as they are now: the program has changed some since they were registered, and
// cannot mremap(2) a mapping that is cut in two. The gate is held while the list of mappings is used, hence
// not for all at once.
void GuardBackEnd::take_registration_off() {
  if (guarded_.cuts_mappings()) return;
  constexpr uint64_t kAtOnce = 64 << 20;
  Arena scratch;
  // The list has the scratch memory too. At another place each time, further up, that would be all that a
  // round takes.
  if (!scratch.reserve(64 << 20)) return;  // the descriptor's end will do it
  for (Addr from{0};; scratch.reset()) {
    MappingsHeld held;
    MemoryMap now(scratch);
    if (!held.sure() || !now.read(attempt_.space.own()).ok()) return;
    uint64_t done = 0;
    for (const Mapping& m : now.mappings()) {
      if (m.range.start < from || m.handling != Handling::kTracked) continue;
      if (done >= kAtOnce) break;
      guarded_.remove(m.range);
      done += m.range.size();
      from = m.range.end;
    }
    if (done == 0) return;
  }
}

// All is copied, or the attempt is given up. Returns when no thread of the program is under guard any more.
void GuardBackEnd::close() {
  // Ahead of the stop the table is the threads' as well; memory that is not registered is not protected.
  if (copies_) copier_.unprotect_rest();
  take_registration_off();
  // Unlike other failures this one cannot be passed on: threads would stay under guard, which costs time
  // and no more.
  for (bool logged = false; open_; closing_.reset()) {
    if (!close_in_a_stop(!logged)) logged = true;
  }
}

bool GuardBackEnd::close_in_a_stop(bool log_failure) {
  // The writer may compress with threads of ours, which the stop is not to wait for.
  RunningOwnThreads ours;
  CompressionThreads& helpers = attempt_.image.compression_threads();
  int helper_tids[CompressionThreads::kMost];
  for (const int tid : helpers.hold(helper_tids)) ours.add(tid);
  int stuck = 0;
  auto stopped = stop_state.world.stop({ours.ids(), {}, own_signal.number, attempt_.settings.stop_timeout_ns},
                                       closing_, &stuck);
  helpers.let_start();
  if (!stopped.ok()) {
    if (log_failure)
      log_format(attempt_.space.log(), "the guard stays open a while: {}", stopped.error().message());
    return false;
  }
  guard::close_stopped();
  guarded_.end_stopped(stopped->first);
  open_ = false;
  stop_state.world.release();
  const int64_t pause = stop_state.world.resumed_ns(now_ns()) - stopped->began_ns;
  const guard::Counters c = guard::counters();
  const CopyCounters& copies = copier_.counters();
  log_format(attempt_.space.log(),
             "faults {}: {} faults, longest {} us; {} system calls passed the guard, {} waited for its "
             "end, longest {} us; {} "
             "signals; the stops that begin and end it {} and {} us",
             guarded_.name(), copies.faults.load(), copies.longest_wait_ns.load() / 1000, c.calls, c.waited,
             c.longest_wait_ns / 1000, c.signals, opened_in_ns_ / 1000, pause / 1000);
  return true;
}

}  // namespace ckpt
