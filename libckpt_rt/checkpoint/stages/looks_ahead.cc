#include "libckpt_rt/checkpoint/stages/looks_ahead.h"

#include <sys/mman.h>

#include <algorithm>

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constinit bool have_differed = false;  // the agent's alone

bool is_read_only_file(const Mapping& m) {
  return m.handling == Handling::kEager && !m.shared && !m.whole && m.inode != 0 &&
         (m.prot & PROT_WRITE) == 0;
}

bool is_same(const Mapping& a, const Mapping& b) {
  return a.range == b.range && a.inode == b.inode && a.device == b.device && a.prot == b.prot &&
         a.file_offset == b.file_offset;
}

}  // namespace

void LooksAhead::forget() {
  looked_.clear();
  runs_.clear();
  future_locks_ = kLocksUnknown;
}

void LooksAhead::look(const MemoryMap& map, PageScan& pages, Arena& arena) {
  looked_ = ArenaVector<Looked>(arena);
  runs_ = ArenaVector<AddrRange>(arena);
  if (have_differed) return;
  for (const Mapping& m : map.mappings()) {
    if (!is_read_only_file(m)) continue;
    const size_t first = runs_.size();
    // One that has gone since the map was read has no pages here, and is not in the stop's map.
    if (!pages.scan(m, runs_).ok() || !looked_.push_back({m, first, runs_.size()})) return forget();
  }
  future_locks_ = look_at_future_locks();
}

Result<bool> LooksAhead::list_pages(const Mapping& m, ArenaVector<AddrRange>& runs) const {
  if (!is_read_only_file(m)) return false;
  const Looked* at =
      std::lower_bound(looked_.begin(), looked_.end(), m.range.start,
                       [](const Looked& l, Addr start) { return l.mapping.range.start < start; });
  if (at == looked_.end() || !is_same(at->mapping, m)) return false;
  if (!runs.append(runs_.data() + at->first, at->last - at->first))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of pages");
  return true;
}

bool LooksAhead::agrees(PageScan& pages, Arena& arena) {
  ArenaVector<AddrRange> now(arena);
  bool same = future_locks_ == kLocksUnknown || look_at_future_locks() == future_locks_;
  for (const Looked& l : looked_) {
    now.clear();
    if (!same || !pages.scan(l.mapping, now).ok()) break;
    same = std::equal(now.begin(), now.end(), runs_.data() + l.first, runs_.data() + l.last);
  }
  have_differed = have_differed || !same;
  forget();
  return same;
}

}  // namespace ckpt
