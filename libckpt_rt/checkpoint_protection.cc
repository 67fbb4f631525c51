// What CheckpointRun does with write protection: ahead of the stop, in it, and when all is copied.
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "libckpt_rt/checkpoint_run.h"
#include "libckpt_rt/excluded_memory.h"
#include "libckpt_rt/futex_words.h"
#include "libckpt_rt/interpose_gate.h"
#include "libckpt_rt/library.h"
#include "libckpt_rt/log.h"
#include "libckpt_rt/task_list.h"

namespace ckpt {

Result<void> CheckpointRun::protect_ahead() {
  if (!protection_.can_protect_ahead()) return get_ready();
  // The second round is for what was mapped during the first: it is as short as there is little.
  for (int round = 0; round < 2; ++round) {
    MemoryMap now(arena_);
    {
      MappingsHeld held;
      if (!held.sure()) {
        log_line(directory_.get(), "a call that changes mappings did not end: memory is protected in the stop, which lasts longer");
        return get_ready();
      }
      CKPT_TRY(now.read(own_.span()));
      now.copy_flags_from(map_before_);
      now.copy_special_pages_eagerly();
      arming_.add(now.mappings());
      // The gate does not hold a program that makes its system calls itself.
      MemoryMap again(arena_);
      CKPT_TRY(again.read(own_.span()));
      arming_.keep(now.mappings(), again.mappings());
    }
    ArenaVector<Addr> stacks(arena_);
    busy_.clear();
    if (!list_stack_pointers(arena_, stacks, busy_)) return no_memory("the list of threads");
    if (round == 1) {
      CKPT_TRY(prepare_eager_copies(now, stacks.size()));
      CKPT_TRY(get_ready());
    }
    // The last thing: what is written from here on is protected in the stop.
    CKPT_TRY(arming_.run(now.mappings(), stacks.span()));
  }
  return {};
}

// Memory for copies made in the pause, touched ahead of it. More is taken in the pause if this is not enough.
Result<void> CheckpointRun::prepare_eager_copies(const MemoryMap& map, size_t threads) {
  constexpr uint64_t kStack = 12 << 10, kMost = 64 << 20;  // bytes
  ArenaVector<AddrRange> runs(arena_);
  for (const Mapping& m : map.mappings()) {
    if (m.handling == Handling::kEager) CKPT_TRY(pages_.scan(m, runs));
  }
  uint64_t bytes = (1 << 20) + threads * kStack;
  for (const AddrRange& r : runs) bytes += r.size();
  if (bytes > kMost) bytes = kMost;
  if (!eager_arena_.reserve(bytes)) return no_memory("copies made in the pause");
  const AddrRange ours = eager_arena_.range();
  if (!own_.push_back(ours)) return no_memory("the checkpoint's lists");
  sys::call(__NR_madvise, ours.start.value, ours.size(), MADV_DONTFORK);
  sys::call(__NR_madvise, ours.start.value, ours.size(), MADV_POPULATE_WRITE);
  return {};
}

// Mapping by mapping, exactly as they are now: a registration that ends in the middle of one would cut it.
void CheckpointRun::take_protection_off() {
  MappingsHeld held;
  MemoryMap now(arena_);
  if (!held.sure() || !now.read(own_.span()).ok()) return;  // the descriptor's end will do it
  for (const Mapping& m : now.mappings()) {
    if (m.handling == Handling::kTracked) protection_.remove(m.range);
  }
}

// The last thing in the stop: what was written since it was protected is protected again, and from here on
// nobody writes to the program's memory without a fault, we ourselves not at all.
Result<void> CheckpointRun::settle_protection() {
  if (!add_stack_pages() || !futex_words::collect(library.stopped_threads, still_memory_, open_pages_)) {
    return no_memory("the list of pages that are not protected");
  }
  std::sort(open_pages_.begin(), open_pages_.end());
  open_pages_.truncate(static_cast<size_t>(std::unique(open_pages_.begin(), open_pages_.end()) - open_pages_.begin()));
  if (!queue_.reserve(arena_, static_cast<uint32_t>(pool_.buffers() + 1))) return no_memory("the queue of buffers");
  map_.copy_special_pages_eagerly();
  ArenaVector<AddrRange> runs(arena_);
  for (const Mapping& m : map_.mappings()) {
    if (m.handling == Handling::kEager) CKPT_TRY(pages_.scan(m, runs));
  }
  WriteProtection::Serving serving(protection_);
  CKPT_TRY(arming_.settle(map_.mappings(), open_pages_.span(), runs));
  CKPT_TRY(leave_out_excluded(runs, 0));
  for (const Mapping& m : map_.mappings()) {
    if (m.handling != Handling::kTracked) continue;
    for (AddrRange out, rest = m.range; !(out = excluded_memory::next_excluded(rest)).empty(); rest.start = out.end) {
      arming_.release(out);
    }
  }
  for (Addr page : open_pages_) {
    if (!table_.is_present(page)) continue;
    if (!runs.push_back({page, page + kPageSize})) return no_memory("the list of pages");
    arming_.release({page, page + kPageSize});
  }
  CKPT_TRY(add_eager(runs.span()));
  ends(kProtection);
  CKPT_TRY(copy_eagerly());
  protection_.serve(&copier_);
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
