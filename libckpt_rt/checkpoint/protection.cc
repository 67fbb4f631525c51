// What CheckpointRun does with write protection: ahead of the stop, in it, and when all is copied.
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "image/write/image_directory.h"
#include "libckpt_rt/capture/excluded_memory.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/capture/heap_extents.h"
#include "libckpt_rt/checkpoint/run.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/core/task_list.h"
#include "libckpt_rt/interpose/memory/gate.h"

namespace ckpt {

// The image that this one is an increment to, if it can be one.
void CheckpointRun::choose_parent() {
  identity_.parent = {};
  if (library.settings.to[0] != '\0') return;  // whoever gets it need not have another
  const ParentImage& parent = watch_.parent;
  if (parent.sequence == 0 || !chain_may_grow(parent, library.settings.increments + 1)) return;
  // The program may have been restarted twice: both write into one directory, and prune it.
  parent_ = hold_image(image_directory(), parent.name);
  if (parent_.valid() && parent_is_whole(image_directory(), library.run_id, parent, key_))
    identity_.parent = parent;
  else
    parent_.reset();
}

// Pages that the program has not written to since the stop of the parent.
Result<void> CheckpointRun::inherit_unwritten() {
  if (identity_.parent.sequence == 0) return {};
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    const Segment& s = table_[id];
    if (!s.in_parent) continue;
    for (uint64_t left = s.present; left != 0;) {
      const int first = std::countr_zero(left), count = std::countr_one(left >> first);
      const Addr start = s.base + static_cast<uint64_t>(first) * kPageSize;
      const Addr end = start + static_cast<uint64_t>(count) * kPageSize;
      if (!inherited_.empty() && inherited_.back().end == start)
        inherited_.back().end = end;
      else if (!inherited_.push_back({start, end}))
        return no_memory("the list of pages");
      left &= count + first >= 64 ? 0 : ~0ull << (first + count);
    }
  }
  return {};
}

// The program may have mapped something else there by the time that its mappings are read again.
void CheckpointRun::disown(Arena& arena) {
  for (size_t i = own_.size(); i-- > 0;) {
    if (own_[i].start != arena.range().start) continue;
    own_[i] = own_.back();
    own_.truncate(own_.size() - 1);
  }
  arena.release();
}

Result<void> CheckpointRun::protect_ahead() {
  if (!is_guarded() && !protection_.can_protect_ahead()) return get_ready();
  // The second round is for what was mapped during the first: it is as short as there is little.
  for (int round = 0; round < 2; ++round) {
    MemoryMap now(arena_);
    {
      MappingsHeld held;
      if (!held.sure() && round == 0 && watch_.is_renewed()) {
        // What is in the table now is of the last checkpoint. Once more, then, from nothing.
        memory_vanished_ = true;
        return make_error(ExitCode::kInternal, 0,
                          "a call that changes mappings did not end: a full image is taken instead");
      }
      if (!held.sure()) {
        log_line(
            directory_.get(),
            "a call that changes mappings did not end: memory is protected in the stop, which lasts longer");
        return get_ready();
      }
      CKPT_TRY(now.read(own_.span()));
      // One made since the guard was opened waits for its end; an older one may not have been mapped then.
      if (is_guarded() && now.has_pinned_pages())
        return refuse("a ring, an asynchronous read or a device writes to its memory");
      now.copy_flags_from(map_before_);
      now.copy_special_pages_eagerly();
      if (is_guarded()) GuardedMemory::leave_out(now.mappings());
      if (round == 0 && watch_.is_renewed()) {
        CKPT_TRY(watch_.renew(now.mappings(), identity_.parent.sequence == 0));
        disown(watch_.former_lists());
      }
      arming_.add(now.mappings());
      // The gate does not hold a program that makes its system calls itself.
      MemoryMap again(arena_);
      CKPT_TRY(again.read(own_.span()));
      arming_.keep(now.mappings(), again.mappings());
    }
    if (round == 0 && watch_.is_renewed()) {
      auto found = arming_.check();
      if (!found.ok()) return found.error();
      if (*found != 0)
        log_format(directory_.get(),
                   "{} segments lost their protection unseen; they are looked at in the stop", *found);
    }
    ArenaVector<Addr> stacks(arena_);
    waiting_.clear();
    if (!list_waiting(arena_, stacks, waiting_)) return no_memory("the list of threads");
    if (round == 1) {
      CKPT_TRY(prepare_eager_copies(now, stacks.size()));
      CKPT_TRY(get_ready());
    }
    // The last thing: what is written from here on is protected in the stop.
    CKPT_TRY(arming_.run(now.mappings(), stacks.span()));
  }
  return {};
}

// Mapping by mapping, exactly as they are now: a registration that ends in the middle of one would cut it.
void CheckpointRun::take_protection_off() {
  MemoryMap now(arena_);
  {
    MappingsHeld held;
    if (!held.sure() || !now.read(own_.span()).ok()) return;  // the descriptor's end will do it
  }
  // The program comes in between: it takes milliseconds for each GiB. Who changes a mapping then has it
  // forgotten first.
  for (const Mapping& m : now.mappings()) {
    if (m.handling != Handling::kTracked) continue;
    for (AddrRange rest = m.range; !rest.empty();) {
      const uint64_t bytes = std::min(rest.size(), WriteProtection::kRemovedAtOnce);
      MappingsHeld held;
      if (!held.sure()) return;
      protection_.remove({rest.start, rest.start + bytes});
      rest.start = rest.start + bytes;
    }
  }
}

// The last thing in the stop: what was written since it was protected is protected again, and from here on
// nobody writes to the program's memory without a fault, we ourselves not at all.
Result<void> CheckpointRun::settle_protection() {
  if (!add_stack_pages() || !futex_words::collect(library.stopped_threads, still_memory_, open_pages_)) {
    return no_memory("the list of pages that are not protected");
  }
  if (is_guarded() && !add_rseq_pages()) return no_memory("the list of pages that are not protected");
  std::sort(open_pages_.begin(), open_pages_.end());
  open_pages_.truncate(
      static_cast<size_t>(std::unique(open_pages_.begin(), open_pages_.end()) - open_pages_.begin()));
  if (!queue_.reserve(arena_, static_cast<uint32_t>(pool_.buffers() + 1)))
    return no_memory("the queue of buffers");
  map_.copy_special_pages_eagerly();
  if (is_guarded()) GuardedMemory::leave_out(map_.mappings());
  ArenaVector<AddrRange> runs(arena_);
  for (const Mapping& m : map_.mappings()) {
    if (m.handling == Handling::kEager) CKPT_TRY(pages_.scan(m, runs));
  }
  ArmedMemory::Serving serving(armed_memory());
  CKPT_TRY(arming_.settle(map_.mappings(), open_pages_.span(), runs));
  CKPT_TRY(leave_out_excluded(runs, 0));
  if (!heap_extents::leave_out(free_heap_.span(), runs, 0)) return no_memory("the list of pages");
  // They stay protected: who writes to one makes its segment writable, as with any page that was not there at
  // the stop.
  for (const AddrRange& free : free_heap_) table_.clear_present(free);
  for (const Mapping& m : map_.mappings()) {
    if (m.handling != Handling::kTracked) continue;
    for (AddrRange out, rest = m.range; !(out = excluded_memory::next_excluded(rest)).empty();
         rest.start = out.end) {
      arming_.release(out);
    }
  }
  for (Addr page : open_pages_) {
    if (!table_.is_present(page)) {
      // A hole beside pages that are protected: the kernel must be able to write there all the same.
      if (table_.has_pages_around(page)) arming_.release({page, page + kPageSize});
      continue;
    }
    if (!runs.push_back({page, page + kPageSize})) return no_memory("the list of pages");
    arming_.release({page, page + kPageSize});
  }
  CKPT_TRY(add_eager(runs.span()));
  ends(kProtection);
  CKPT_TRY(copy_eagerly());
  if (!is_guarded()) protection_.serve(&copier_);
  ends(kCopies);
  return {};
}

// Where a thread stands in our handler, and where it will go on: it writes there at once.
bool CheckpointRun::add_stack_pages() {
  constexpr uint64_t kBelow = 2 << 10, kMost = 32 << 10;  // bytes
  for (const ThreadSlot* s = library.stopped_threads; s != nullptr; s = s->next) {
    const Addr low = Addr{Addr::of(s).value - kBelow}.page_down();
    const Addr goes_on = Addr{static_cast<uint64_t>(s->frame->uc_mcontext.gregs[REG_RSP])}.page_down();
    // With an alternate signal stack these are far apart.
    const Addr high = goes_on >= low && goes_on - low <= kMost ? goes_on : low + kPageSize;
    for (Addr a = low; a <= high; a = a + kPageSize) {
      if (!open_pages_.push_back(a)) return false;
    }
    if (high != goes_on && !open_pages_.push_back(goes_on)) return false;
    // What the kernel writes when the thread exits; it does not wait for a fault then.
    if (s->clear_child_tid != 0 && !open_pages_.push_back(Addr{s->clear_child_tid}.page_down())) return false;
  }
  return true;
}

}  // namespace ckpt
