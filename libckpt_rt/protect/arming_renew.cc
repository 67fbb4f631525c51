// What stays of protection from one checkpoint to the next (arming.h).
#include <algorithm>

#include "libckpt_rt/protect/arming.h"
#include "libckpt_rt/protect/write_protect.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

void Arming::mark_open(AddrRange range) {
  SegmentId id, last;
  for (table_.find_range(range, &id, &last); id < last; ++id.value) {
    if (table_.window(table_[id]).overlaps(range)) table_[id].open = true;
  }
}

Result<void> Arming::resume() {
  written_.clear();
  taken_.clear();
  unsettled_.clear();
  if (!written_.reserve(table_.size()) || !taken_.reserve(table_.size()) ||
      !unsettled_.reserve(table_.size())) {
    return no_memory_for_segments();
  }
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    Segment& s = table_[id];
    const SegmentState state = table_.state(id);
    // Others may write to shared memory, or give it back, past our protection: what is known of it is of no
    // use.
    const bool shared = table_.region(s).shared;
    if (shared) s.present = 0;
    if (s.given_back.exchange(false, std::memory_order_relaxed)) {
      table_.set(id, SegmentState::kUnsettled);
      s.open = false;
      if (!unsettled_.push_back(id.value)) return no_memory_for_segments();
    } else if (!s.open && !shared &&
               (state == SegmentState::kUnchanged || state == SegmentState::kProtected)) {
      table_.set(id, SegmentState::kProtected);
      s.in_parent = true;
    } else {
      table_.set(id, SegmentState::kWritten);
      s.open = false;
      if (!written_.push_back(id.value)) return no_memory_for_segments();
    }
  }
  return {};
}

Result<void> Arming::renew(Arena& arena, std::span<const Mapping> map, bool full) {
  ArenaVector<Region> pieces(arena);
  size_t segments = 0;
  for (size_t c = 0, m = 0; c < covered_.size() && m < map.size();) {
    const AddrRange range = covered_[c].range.common(map[m].range);
    if (!range.empty() && map[m].handling == Handling::kTracked) {
      if (!pieces.push_back({range, (map[m].prot & PROT_READ) != 0, map[m].shared, map[m].of_job}))
        return no_memory_for_segments();
      segments += SegmentTable::segments_of(range, segment_bytes_);
    }
    if (covered_[c].range.end < map[m].range.end)
      ++c;
    else
      ++m;
  }
  SegmentTable table;
  ArenaVector<Covered> covered(arena);
  if (!table.reserve(arena, segment_bytes_, segments, pieces.size()) || !covered.reserve(pieces.size()))
    return no_memory_for_segments();
  for (const Region& piece : pieces) {
    if (!table.add_region(piece) || !table.add_window(piece.range) ||
        !covered.push_back({piece.range, static_cast<uint32_t>(table.regions().size() - 1)})) {
      return no_memory_for_segments();
    }
  }
  ArenaVector<uint32_t> written(arena), taken(arena), unsettled(arena);
  ArenaVector<AddrRange> suspects(arena), early(arena);
  if (!written.reserve(segments) || !taken.reserve(segments) || !unsettled.reserve(segments) ||
      !early.reserve(kMostEarly)) {
    return no_memory_for_segments();
  }

  ArmedMemory::Serving serving(protection_);
  SegmentId old{0};
  for (SegmentId id{0}; id.value < table.size(); ++id.value) {
    Segment& s = table[id];
    const AddrRange window = table.window(s);
    table.set(id, SegmentState::kWritten);
    while (old.value < table_.size() && table_[old].base < s.base) ++old.value;
    for (SegmentId same = old; same.value < table_.size() && table_[same].base == s.base; ++same.value) {
      if (table_.window(table_[same]) != window) continue;
      const SegmentState state = table_.state(same);
      if (state == SegmentState::kUnsettled) {
        if (!suspects.empty() && suspects.back().end == window.start)
          suspects.back().end = window.end;
        else if (!suspects.push_back(window))
          return no_memory_for_segments();
        break;
      }
      s.present = table_[same].present;
      s.in_parent = table_[same].in_parent && !full;
      s.heat = state == SegmentState::kWritten ? 1 : 0;
      table.set(id, state);
      break;
    }
    if (table.state(id) == SegmentState::kWritten && !written.push_back(id.value))
      return no_memory_for_segments();
  }
  if (!suspects.append(early_.data(), early_.size())) return no_memory_for_segments();
  suspect_all_ = early_overflow_;
  early_overflow_ = false;
  table_.replace_by(table);
  arena_ = &arena;
  covered_ = covered;
  written_ = written;
  taken_ = taken;
  unsettled_ = unsettled;
  suspects_ = suspects;
  early_ = early;
  runs_ = ArenaVector<AddrRange>(arena);
  faults_.store(0, std::memory_order_relaxed);
  passes_ = 0;
  return {};
}

Result<size_t> Arming::check() {
  constexpr uint64_t kAtOnce = 64 << 20;  // bytes looked at while faults wait
  size_t found = 0;
  for (const Covered& c : covered_) {
    if (table_.region(c.region).shared) continue;
    for (AddrRange rest = c.range, part; !rest.empty(); rest.start = part.end) {
      part = {rest.start, rest.size() > kAtOnce ? rest.start + kAtOnce : rest.end};
      ArmedMemory::Serving serving(protection_);
      auto more = check_range(part);
      if (!more.ok()) return more.error();
      found += *more;
    }
  }
  return found;
}

Result<void> Arming::settle_suspects() {
  if (suspect_all_) {
    suspects_.clear();
    for (const Covered& c : covered_) {
      if (!suspects_.push_back(c.range)) return no_memory_for_segments();
    }
  }
  for (const AddrRange& suspect : suspects_) CKPT_TRY(check_range(suspect));
  suspects_.clear();
  return {};
}

// Segments of the range that are kProtected and not protected in full become kUnsettled.
Result<size_t> Arming::check_range(AddrRange range) {
  SegmentId id, last;
  table_.find_range(range, &id, &last);
  return check_segments(id, last, kAnyRegion);
}

Result<size_t> Arming::check_segments(SegmentId id, SegmentId last, uint32_t region) {
  if (id == last) return size_t{0};
  const AddrRange range{table_[id].base, table_[SegmentId{last.value - 1}].base + segment_bytes_};
  runs_.clear();
  CKPT_TRY(pages_.scan_unprotected(range, protection_.kernel_waits(), runs_));
  size_t found = 0, run = 0;
  for (; id < last; ++id.value) {
    const AddrRange window = table_.window(table_[id]);
    while (run < runs_.size() && runs_[run].end <= window.start) ++run;
    const bool all = run == runs_.size() || runs_[run].start >= window.end;
    if (all || table_.state(id) != SegmentState::kProtected) continue;
    if (region != kAnyRegion && table_[id].region != region) continue;
    table_.unsettled(id);
    if (!unsettled_.push_back(id.value)) return no_memory_for_segments();
    ++found;
  }
  return found;
}

}  // namespace ckpt
