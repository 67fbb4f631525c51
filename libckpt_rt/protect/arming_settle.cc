// The stop's half of protection (arming.h, 5.): what was written or unsettled since it was protected, and
// what is new.
#include <sys/mman.h>

#include <algorithm>

#include "base/checks/check.h"
#include "libckpt_rt/protect/arming.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint64_t kGap =
    256 << 10;  // most bytes between two segments that one call protects in the stop, with what is between
constexpr uint64_t kOpenBytes = 32 << 10;  // in a segment with pages that are not protected
constexpr uint64_t kFewBytes = 256 << 10;  // memory outside of the table that is copied in the pause

Error cannot_protect(AddrRange r, long error) {
  return make_error(ExitCode::kInternal, static_cast<int>(error), "cannot write-protect {:#x}-{:#x} ({})",
                    r.start.value, r.end.value, errno_name(static_cast<int>(error)));
}

}  // namespace

Result<void> Arming::settle(std::span<Mapping> map, std::span<const Addr> open,
                            ArenaVector<AddrRange>& eager) {
  CKPT_TRY(settle_suspects());
  // Segments that faults and events have left.
  if (!written_.append(unsettled_.data(), unsettled_.size())) return no_memory_for_segments();
  std::sort(written_.begin(), written_.end());
  // Written first, and unsettled later: it is in both lists.
  written_.truncate(static_cast<size_t>(std::unique(written_.begin(), written_.end()) - written_.begin()));
  const size_t known = unsettled_.size();
  CKPT_TRY(settle_written(map, open, eager));
  // Segments that were found on the way.
  written_.clear();
  if (!written_.append(unsettled_.data() + known, unsettled_.size() - known)) return no_memory_for_segments();
  std::sort(written_.begin(), written_.end());
  CKPT_TRY(settle_written(map, open, eager));
  CKPT_TRY(settle_covered(map));
  return settle_rest(map, open, eager);
}

// May one call protect all from `first` to `last`? Not if a kProtected segment between has lost its
// protection: a change of it would go unseen. True: all of them are protected. False: some are kUnsettled
// now. Only segments of first's region count. Segments of other regions, in the windows at both ends, may
// have been settled by this stop without protection.
Result<bool> Arming::is_settled(SegmentId first, SegmentId last) {
  auto found = check_segments(first, {last.value + 1}, table_[first].region);
  if (found.ok()) return *found == 0;
  if (found.error().sys_errno == ENOTTY) return true;  // before Linux 6.7 nobody can tell
  return found.error();
}

Result<void> Arming::settle_written(std::span<Mapping> map, std::span<const Addr> open,
                                    ArenaVector<AddrRange>& eager) {
  auto holds_open = [&](AddrRange range) {
    const Addr* page = std::lower_bound(open.data(), open.data() + open.size(), range.start);
    return page != open.data() + open.size() && *page < range.end;
  };
  // Written to, and as complete as before: pages that go are announced. Only its protection is missing.
  auto is_whole = [&](SegmentId id) {
    return table_.state(id) == SegmentState::kWritten && table_[id].present == table_.all_pages(id);
  };
  for (size_t i = 0; i < written_.size();) {
    SegmentId id{written_[i]};
    AddrRange range = table_.window(table_[id]);
    if (is_whole(id) && !holds_open(range)) {
      // With the written segments behind it, across protected ones: every call has its price.
      size_t end = i + 1;
      bool apart = false;
      for (; end < written_.size(); ++end) {
        const SegmentId next{written_[end]};
        const AddrRange window = table_.window(table_[next]);
        if (!is_whole(next) || table_[next].region != table_[id].region || window.start - range.end > kGap ||
            holds_open({range.end, window.end})) {
          break;
        }
        apart = apart || window.start != range.end;
        range.end = window.end;
      }
      const size_t m = mapping_at(map, range.start);
      bool together =
          m < map.size() && map[m].handling == Handling::kTracked && map[m].range.common(range) == range;
      if (together && apart) {
        auto settled = is_settled(id, {written_[end - 1]});
        if (!settled.ok()) return settled.error();
        together = *settled;
      }
      if (together && protection_.protect(range) == 0) {
        for (; i < end; ++i) table_.set(SegmentId{written_[i]}, SegmentState::kProtected);
        continue;
      }
      range = table_.window(table_[id]);
    }
    ++i;
    const bool opens = holds_open(range);
    table_.set(id, SegmentState::kProtected);
    while (!opens && i < written_.size() && written_[i] == id.value + 1 &&
           table_.window(table_[SegmentId{written_[i]}]).start == range.end &&
           !holds_open(table_.window(table_[SegmentId{written_[i]}]))) {
      id.value = written_[i++];
      table_.set(id, SegmentState::kProtected);
      range.end = table_.window(table_[id]).end;
    }
    table_.clear_present(range);
    uint64_t tracked = 0;
    for (size_t m = mapping_at(map, range.start); m < map.size() && map[m].range.start < range.end; ++m) {
      if (map[m].handling != Handling::kTracked) continue;
      const AddrRange part = map[m].range.common(range);
      tracked += part.size();
      CKPT_TRY(settle_part(map[m], part, opens ? open : std::span<const Addr>(), eager));
    }
    if (tracked != range.size()) mark_open(range);
  }
  // A segment that stayed kWritten would be copied by nobody, without a word.
  for (uint32_t id : written_) CHECK(table_.state({id}) == SegmentState::kProtected);
  return {};
}

// Are those of the open pages that lie in `part` among the pages just listed?
bool Arming::exist(std::span<const Addr> open, AddrRange part) const {
  const AddrRange* run = runs_.begin();
  for (auto page = std::lower_bound(open.begin(), open.end(), part.start);
       page != open.end() && *page < part.end; ++page) {
    while (run != runs_.end() && run->end <= *page) ++run;
    if (run == runs_.end() || *page < run->start) return false;
  }
  return true;
}

// open: the pages that will be released, if there are any around here.
Result<void> Arming::settle_part(const Mapping& m, AddrRange part, std::span<const Addr> open,
                                 ArenaVector<AddrRange>& eager) {
  if (m.of_job) {
    // Holes as well, and pages that will be released too: in all members the same is protected (arming.cc,
    // find_blocks), or kept for the others before it is released.
    if (protection_.protect(part) != 0) {
      long r = protection_.add(m.range);
      if (r == 0) r = protection_.protect(part);
      if (r != 0) return cannot_protect(part, r);
    }
    table_.set_present(part);
    return {};
  }
  CKPT_TRY(list_pages(part, m.shared));
  if (runs_.empty()) {
    mark_open(part);  // not worth a call now
    return {};
  }
  uint64_t bytes = 0;
  for (const AddrRange& run : runs_) bytes += run.size();
  // The end of a stack, mostly: to copy it costs no more than to protect it, and spares its thread a fault.
  // (A thread that has been counted may still be on its way to sleep: where nobody serves its fault its stack
  // must not be protected for an instant.)
  bool copied = !open.empty() && (bytes <= kOpenBytes || !protection_.kernel_waits());
  // Ahead of protect(), which undoes a failure piece by piece: of what is not registered that takes thousands
  // of calls.
  if (!copied && !protection_.kernel_waits()) copied = protection_.add(m.range) != 0;
  if (!copied && protection_.protect(part) != 0) {
    // Mapped anew in this place.
    copied = protection_.add(m.range) != 0;
    if (long r = copied ? 0 : protection_.protect(part); r != 0) return cannot_protect(part, r);
  }
  if (copied) {
    // An unsettled segment may still be protected. If only holes of it are, that does no harm, unless an open
    // page is among them: there the kernel writes.
    if (pages_.saw_protected() || !exist(open, part)) protection_.unprotect(part);
    mark_open(part);
    return eager.append(runs_.data(), runs_.size()) ? Result<void>() : no_memory_for_segments();
  }
  for (const AddrRange& run : runs_) table_.set_present(run);
  return {};
}

// Covered memory whose mapping is gone, or is of another kind now, has no pages for the image here.
Result<void> Arming::settle_covered(std::span<const Mapping> map) {
  size_t m = 0;
  for (const Covered& c : covered_) {
    while (m < map.size() && map[m].range.end <= c.range.start) ++m;
    Addr from = c.range.start;
    for (size_t i = m; from < c.range.end; ++i) {
      const bool more = i < map.size() && map[i].range.start < c.range.end;
      if (more && map[i].handling != Handling::kTracked) continue;
      AddrRange gone{from, more ? map[i].range.start : c.range.end};
      if (gone.start < gone.end) {
        table_.clear_present(gone);
        mark_open(gone);
      }
      if (!more) break;
      if ((map[i].prot & PROT_READ) == 0) table_.regions()[c.region].readable = false;
      from = map[i].range.end;
    }
  }
  return {};
}

// Memory outside of the table.
Result<void> Arming::settle_rest(std::span<Mapping> map, std::span<const Addr> open,
                                 ArenaVector<AddrRange>& eager) {
  struct Run {
    AddrRange range;
    size_t mapping;
  };
  ArenaVector<Run> found(*arena_);
  uint64_t bytes = 0;
  size_t segments = 0, c = 0;
  auto take = [&](AddrRange run, size_t mapping) {
    bytes += run.size();
    segments += SegmentTable::segments_of(run, segment_bytes_);
    return run.empty() || found.push_back({run, mapping});
  };
  for (size_t i = 0; i < map.size(); ++i) {
    const Mapping& m = map[i];
    if (m.handling != Handling::kTracked) continue;
    while (c < covered_.size() && covered_[c].range.end <= m.range.start) ++c;
    Addr from = m.range.start;
    for (size_t j = c; from < m.range.end; ++j) {
      const bool more = j < covered_.size() && covered_[j].range.start < m.range.end;
      AddrRange rest{from, more ? covered_[j].range.start : m.range.end};
      if (rest.start < rest.end) {
        CKPT_TRY(list_pages(rest, m.shared));
        for (const AddrRange& run : runs_) {
          AddrRange left = run;
          if (!protection_.kernel_waits()) {
            // Segments with pages that will be released are copied whole, as in settle_part().
            for (auto page = std::lower_bound(open.begin(), open.end(), run.start);
                 page != open.end() && *page < run.end; ++page) {
              if (*page < left.start) continue;
              const Addr base{page->value & ~(segment_bytes_ - 1)};
              const AddrRange around = AddrRange{base, base + segment_bytes_}.common(left);
              if (!take({left.start, around.start}, i) || !eager.push_back(around))
                return no_memory_for_segments();
              left.start = around.end;
            }
          }
          if (!take(left, i)) return no_memory_for_segments();
        }
      }
      if (!more) break;
      from = covered_[j].range.end;
    }
  }
  SegmentTable added;
  if (bytes > kFewBytes && !added.reserve(*arena_, segment_bytes_, segments, found.size()))
    return no_memory_for_segments();
  size_t registered = SIZE_MAX;
  for (const Run& run : found) {
    Mapping& m = map[run.mapping];
    if (bytes > kFewBytes && registered != run.mapping && protection_.add(m.range) == 0)
      registered = run.mapping;
    if (registered != run.mapping) {
      if (!eager.push_back(run.range)) return no_memory_for_segments();
      continue;
    }
    if (long r = protection_.protect(run.range); r != 0) return cannot_protect(run.range, r);
    if (!added.add_region({run.range, (m.prot & PROT_READ) != 0, m.shared, m.of_job}) ||
        !added.add_run(run.range))
      return no_memory_for_segments();
  }
  return table_.merge(*arena_, added) ? Result<void>() : no_memory_for_segments();
}

void Arming::release(AddrRange pages) {
  table_.clear_present(pages);
  mark_open(pages);
  // Where it was not protected there is nothing to undo.
  protection_.unprotect(pages);
}

}  // namespace ckpt
