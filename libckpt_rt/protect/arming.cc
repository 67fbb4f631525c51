#include "libckpt_rt/protect/arming.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/checks/check.h"
#include "base/clock.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint64_t kBlock = 2 << 20;   // bytes described by one page of page tables
constexpr uint64_t kAtOnce = 4 << 20;  // bytes protected by one call: mmap() of the program waits for it
constexpr size_t kFew = 64;            // segments that the stop can protect in no time
constexpr uint32_t kMostPasses = 16;

}  // namespace

Result<void> Arming::prepare(Arena& arena, uint64_t segment_bytes) {
  arena_ = &arena;
  segment_bytes_ = segment_bytes;
  covered_ = ArenaVector<Covered>(arena);
  runs_ = ArenaVector<AddrRange>(arena);
  written_ = taken_ = unsettled_ = ArenaVector<uint32_t>(arena);
  early_ = suspects_ = ArenaVector<AddrRange>(arena);
  return table_.reserve(arena, segment_bytes, 0, 0) && early_.reserve(kMostEarly) ? Result<void>()
                                                                                  : no_memory_for_segments();
}

void Arming::fault(Addr a) {
  faults_.fetch_add(1, std::memory_order_relaxed);
  SegmentId id;
  const AddrRange page{a.page_down(), a.page_down() + kPageSize};
  if (!table_.find(a, &id)) {
    if (protection_.unprotect(page) != 0) protection_.wake(page);
    return;
  }
  AddrRange window = table_.window(table_[id]);
  if (protection_.unprotect(window) != 0) {
    // Not all of the window is registered; the kernel stops at the first part that is not.
    if (protection_.unprotect(page) != 0) protection_.wake(page);
    removed(window);
  } else if (table_.written(id)) {
    // Each segment is in the list at most once, and the list has room for all. A segment that is not in it
    // would not be protected in the stop.
    CHECK(written_.push_back(id.value));
  }
}

void Arming::removed(AddrRange range) {
  if (!in_table(range) && (early_.empty() || early_.back() != range) &&
      (early_.size() == kMostEarly || !early_.push_back(range))) {
    early_overflow_ = true;
  }
  unsettle(range);
}

void Arming::unsettle(AddrRange range) {
  AddrRange open{};  // segments side by side that were protected
  auto unprotect = [&] {
    if (!open.empty()) protection_.unprotect(open);
    open = {};
  };
  SegmentId id, last;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    const AddrRange window = table_.window(table_[id]);
    if (!window.overlaps(range) || table_.state(id) == SegmentState::kUnsettled) continue;
    const bool was_protected = table_.unsettled(id);
    CHECK(unsettled_.push_back(id.value));
    if (!was_protected || protection_.kernel_waits()) continue;
    if (window.start != open.end || open.size() >= kAtOnce) unprotect();
    if (open.empty()) open = window;
    open.end = window.end;
  }
  unprotect();
}

void Arming::open_for_kernel(AddrRange range) { unsettle(range); }

bool Arming::fault_in_thread(Addr page, bool* was_writable) {
  SegmentId id;
  if (!table_.find(page, &id)) return false;
  *was_writable = table_.state(id) != SegmentState::kProtected;
  if (!*was_writable) fault(page);
  return true;
}

Result<void> Arming::list_pages(AddrRange range, bool shared) {
  Mapping part;
  part.range = range;
  part.shared = shared;
  part.whole = true;
  runs_.clear();
  return pages_.scan(part, runs_);
}

bool Arming::in_table(AddrRange range) const {
  SegmentId id, last;
  Addr reached = range.start;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    AddrRange window = table_.window(table_[id]);
    if (window.start <= reached && window.end > reached) reached = window.end;
  }
  return reached >= range.end;
}

bool Arming::covers(AddrRange range) const {
  SegmentId id, last;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    if (table_.window(table_[id]).overlaps(range) && !table_.region(table_[id]).of_job) return false;
  }
  return in_table(range);
}

void Arming::make_changed_eager(std::span<Mapping> map, std::span<const Mapping> again) {
  size_t i = 0;
  for (Mapping& m : map) {
    while (i < again.size() && again[i].range.start < m.range.start) ++i;
    if (i == again.size() || again[i].range != m.range) m.handling = Handling::kEager;
  }
}

void Arming::add(std::span<Mapping> map) {
  for (Mapping& m : map) {
    if (m.handling == Handling::kTracked && protection_.add(m.range) != 0) m.handling = Handling::kEager;
  }
}

Result<void> Arming::run(std::span<const Mapping> map, std::span<const Addr> stacks) {
  CKPT_TRY(cover(map));
  // Held from the first pass to the last: if faults were served as fast as they come, several threads that
  // write all over their memory would undo a pass before the next begins.
  ArmedMemory::Serving serving(protection_, ArmedMemory::Served::kOnce);
  for (Addr a : stacks) removed({Addr{a.value - kHandlerStackBytes}.page_down(), a.page_down() + kPageSize});
  size_t before = SIZE_MAX;
  for (uint32_t passes = 0, worse = 0; passes < kMostPasses && worse < 3 && !is_late(); ++passes) {
    const size_t left = written_.size();
    if (left <= kFew) break;
    if (left >= before - before / 8) ++worse;
    before = left;
    CKPT_TRY(pass());
  }
  return {};
}

Result<void> Arming::catch_up() {
  ArmedMemory::Serving serving(protection_, ArmedMemory::Served::kOnce);
  return written_.size() > kFew && !is_late() ? pass() : Result<void>();
}

Result<void> Arming::cover(std::span<const Mapping> map) {
  shared_left_ = kSharedCovered;
  ArenaVector<AddrRange> blocks(*arena_);
  size_t c = 0;
  for (const Mapping& m : map) {
    if (m.handling != Handling::kTracked) continue;
    while (c < covered_.size() && covered_[c].range.end <= m.range.start) ++c;
    Addr from = m.range.start;
    for (size_t i = c; from < m.range.end; ++i) {
      const bool more = i < covered_.size() && covered_[i].range.start < m.range.end;
      AddrRange rest{from, more ? covered_[i].range.start : m.range.end};
      if (rest.start < rest.end) CKPT_TRY(find_blocks(m, rest, blocks));
      if (!more) break;
      from = covered_[i].range.end;
    }
  }
  return add_to_table(blocks.span(), map);
}

// Parts of `rest` worth protecting now: those in which pages exist.
Result<void> Arming::find_blocks(const Mapping& m, AddrRange rest, ArenaVector<AddrRange>& blocks) {
  // Locks that other processes made may lie in it; there is no harm in looking at a little memory in the
  // stop.
  constexpr uint64_t kLittle = 64 << 20;
  // All of it, holes too: what another member makes there must not fault in it alone.
  if (m.of_job) return blocks.push_back(rest) ? Result<void>() : no_memory_for_segments();
  if (m.shared && m.range.size() <= kLittle) return {};
  // Little memory is covered whether it exists or not, so that nobody need look at it in the stop.
  if (rest.size() <= (m.shared ? shared_left_ : kBlock)) {
    if (m.shared) shared_left_ -= rest.size();
    return blocks.push_back(rest) ? Result<void>() : no_memory_for_segments();
  }
  CKPT_TRY(list_pages(rest, m.shared));
  if (m.shared) {
    uint64_t bytes = 0;
    for (const AddrRange& run : runs_) bytes += run.size();
    // There is room for all of it (most_segments()), and what is left out has to be looked at in the stop.
    if (bytes >= rest.size() / 256) return blocks.push_back(rest) ? Result<void>() : no_memory_for_segments();
  }
  for (const AddrRange& run : runs_) {
    AddrRange block{Addr{run.start.value & ~(kBlock - 1)},
                    Addr{(run.end.value + kBlock - 1) & ~(kBlock - 1)}};
    block = block.common(rest);
    if (!blocks.empty() && blocks.back().end >= block.start && blocks.back().end > rest.start) {
      if (blocks.back().end < block.end) blocks.back().end = block.end;
    } else if (!blocks.push_back(block)) {
      return no_memory_for_segments();
    }
  }
  return {};
}

Result<void> Arming::add_to_table(std::span<const AddrRange> blocks, std::span<const Mapping> map) {
  size_t segments = 0;
  for (const AddrRange& b : blocks) segments += SegmentTable::segments_of(b, segment_bytes_);
  SegmentTable added;
  if (!added.reserve(*arena_, segment_bytes_, segments, blocks.size())) return no_memory_for_segments();
  for (const AddrRange& b : blocks) {
    const Mapping& m = map[mapping_at(map, b.start)];
    if (!added.add_region({b, (m.prot & PROT_READ) != 0, m.shared, m.of_job}) || !added.add_window(b))
      return no_memory_for_segments();
    if (!covered_.push_back({b, static_cast<uint32_t>(table_.regions().size() + added.regions().size() - 1)}))
      return no_memory_for_segments();
  }
  std::sort(covered_.begin(), covered_.end(),
            [](const Covered& a, const Covered& b) { return a.range.start < b.range.start; });
  for (SegmentId id{0}; id.value < added.size(); ++id.value) added.set(id, SegmentState::kWritten);

  // Segments get new numbers: the lists are made anew.
  const size_t size = table_.size() + segments;
  ArenaVector<uint32_t> written(*arena_), taken(*arena_), unsettled(*arena_);
  if (!written.reserve(size) || !taken.reserve(size) || !unsettled.reserve(size))
    return no_memory_for_segments();
  ArmedMemory::Serving serving(protection_);
  if (!table_.merge(*arena_, added)) return no_memory_for_segments();
  auto leave_to_stop = [&](SegmentId id) {
    if (table_.state(id) == SegmentState::kProtected && !protection_.kernel_waits())
      protection_.unprotect(table_.window(table_[id]));
    table_.set(id, SegmentState::kUnsettled);
  };
  for (SegmentId id{0}; early_overflow_ && id.value < table_.size(); ++id.value) leave_to_stop(id);
  for (const AddrRange& r : early_) {
    SegmentId id, last;
    for (table_.find_range(r, &id, &last); id < last; ++id.value) {
      if (table_.window(table_[id]).overlaps(r)) leave_to_stop(id);
    }
  }
  protection_.each_busy(
      [](void* table, AddrRange range) {
        auto& t = *static_cast<SegmentTable*>(table);
        SegmentId id, last;
        for (t.find_range(range, &id, &last); id < last; ++id.value) {
          // Of what is protected already open_for_kernel() was told in time.
          if (t.window(t[id]).overlaps(range) && t.state(id) == SegmentState::kWritten)
            t.set(id, SegmentState::kUnsettled);
        }
      },
      &table_);
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    SegmentState state = table_.state(id);
    if (state == SegmentState::kProtected) continue;
    if (!(state == SegmentState::kWritten ? written : unsettled).push_back(id.value))
      return no_memory_for_segments();
  }
  written_ = written;
  taken_ = taken;
  unsettled_ = unsettled;
  return {};
}

bool Arming::is_late() const { return deadline_ns_ != INT64_MAX && now_ns() > deadline_ns_; }

Result<void> Arming::pass() {
  ++passes_;
  std::swap(written_, taken_);
  std::sort(taken_.begin(), taken_.end());
  // Between two batches every thread that waits is served, once: however fast threads write, each of them
  // undoes one segment of a batch, and passes get ahead.
  for (size_t i = 0; i < taken_.size();) {
    protection_.serve_waiting();
    if (is_late()) {
      // A fault adds only a segment that was protected: none of these is in the list.
      for (; i < taken_.size(); ++i) {
        if (!written_.push_back(taken_[i])) return no_memory_for_segments();
      }
      break;
    }
    for (const size_t batch = i + protection_.batch(); i < taken_.size() && i < batch;)
      CKPT_TRY(protect_next(i));
  }
  taken_.clear();
  return {};
}

// taken_[i] and those behind it that lie side by side.
Result<void> Arming::protect_next(size_t& i) {
  SegmentId id{taken_[i++]};
  if (!table_.protect(id)) return {};
  const SegmentId first = id;
  AddrRange range = table_.window(table_[id]);
  const uint32_t region = table_[id].region;
  bool all_exist = table_[id].present == table_.all_pages(id);
  while (i < taken_.size() && taken_[i] == id.value + 1 && table_[SegmentId{taken_[i]}].region == region &&
         range.end.value % kAtOnce != 0 && table_.protect(SegmentId{taken_[i]})) {
    id.value = taken_[i++];
    range.end = table_.window(table_[id]).end;
    all_exist = all_exist && table_[id].present == table_.all_pages(id);
  }
  // Pages that go are announced, and leave their segment kUnsettled.
  if (!protect_now(first, id, range) || all_exist) return {};
  // Other members make pages there as well: which of them exist is asked when they are copied
  // (SharedLedger::read).
  if (table_.region(table_[first]).of_job) {
    table_.set_present(range);
    return {};
  }
  CKPT_TRY(list_pages(range, table_.region(table_[first]).shared));
  table_.clear_present(range);
  for (const AddrRange& run : runs_) table_.set_present(run);
  return {};
}

// False: the segments stay as they are until the stop, being unmapped in part, or words of futexes lie there.
bool Arming::protect_now(SegmentId first, SegmentId last, AddrRange range) {
  {
    futex_words::Hold hold(range);
    if (!futex_words::noted_in(range)) {
      if (protection_.protect(range) == 0) return true;
    } else if (first < last) {
      // Each segment alone: most segments have no words of futexes.
      for (SegmentId id = first; id <= last; ++id.value) {
        AddrRange window = table_.window(table_[id]);
        if (!futex_words::noted_in(window) && protection_.protect(window) == 0) continue;
        removed(window);
      }
      return true;
    }
  }
  removed(range);
  return false;
}

}  // namespace ckpt
