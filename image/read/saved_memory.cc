#include "image/read/saved_memory.h"

#include <algorithm>
#include <cstring>

namespace ckpt {

namespace {

constexpr size_t kRemembered = 8;  // extents: enough for the stacks that a backtrace walks

// The first piece that ends after `at`.
std::span<const MemoryPiece>::iterator first_after(std::span<const MemoryPiece> pieces, Addr at) {
  return std::upper_bound(pieces.begin(), pieces.end(), at,
                          [](Addr a, const MemoryPiece& p) { return a < p.address + p.length; });
}

}  // namespace

const ParsedMapping* mapping_at(const ImageMeta& meta, Addr at) {
  auto it = std::upper_bound(meta.mappings.begin(), meta.mappings.end(), at.value,
                             [](uint64_t a, const ParsedMapping& m) { return a < m.record.end; });
  return it != meta.mappings.end() && it->record.start <= at.value ? &*it : nullptr;
}

std::vector<AddrRange> SavedMemory::stored_in(AddrRange range) const {
  std::vector<AddrRange> runs;
  auto pieces = image_.pieces();
  for (auto p = first_after(pieces, range.start); p != pieces.end() && p->address < range.end; ++p) {
    Addr start = std::max(p->address, range.start), end = std::min(p->address + p->length, range.end);
    if (!runs.empty() && runs.back().end == start) {
      runs.back().end = end;
    } else {
      runs.push_back({start, end});
    }
  }
  return runs;
}

Result<const std::byte*> SavedMemory::unpack(const MemoryPiece& piece) {
  const Extent& extent = image_.extent_of(piece);
  for (auto it = recent_.begin(); it != recent_.end(); ++it) {
    if (it->extent != &extent) continue;
    recent_.splice(recent_.begin(), recent_, it);
    return static_cast<const std::byte*>(it->bytes.data());
  }
  Unpacked fresh{&extent, std::vector<std::byte>(extent.length)};
  CKPT_TRY(image_.image(piece.image).read_extent(extent, fresh.bytes));
  recent_.push_front(std::move(fresh));
  if (recent_.size() > kRemembered) recent_.pop_back();
  return static_cast<const std::byte*>(recent_.front().bytes.data());
}

Result<void> SavedMemory::read(Addr at, std::span<std::byte> out) {
  std::memset(out.data(), 0, out.size());
  Addr end = at + out.size();
  auto pieces = image_.pieces();
  for (auto p = first_after(pieces, at); p != pieces.end() && p->address < end; ++p) {
    Addr from = std::max(p->address, at), to = std::min(p->address + p->length, end);
    auto bytes = unpack(*p);
    if (!bytes.ok()) return bytes.error();
    std::memcpy(out.data() + (from - at), *bytes + p->into + (from - p->address), to - from);
  }
  return {};
}

namespace {

// Adds what of `fresh` is not there yet. Both in address order.
void add_missing(std::vector<SavedMemory::Contents>& have, const SavedMemory::Contents& fresh) {
  std::vector<SavedMemory::Contents> missing;
  Addr at = fresh.range.start;
  auto take = [&](Addr to) {
    if (to <= at) return;
    uint64_t into = at - fresh.range.start;
    missing.push_back({{at, to},
                       fresh.from + into,
                       fresh.bytes.empty() ? Blob{} : fresh.bytes.subspan(into, to - at),
                       fresh.saver});
  };
  for (const auto& c : have) {
    if (c.range.end <= at) continue;
    if (c.range.start >= fresh.range.end) break;
    take(c.range.start);
    at = c.range.end;
  }
  take(fresh.range.end);
  have.insert(have.end(), missing.begin(), missing.end());
  std::sort(have.begin(), have.end(),
            [](const auto& a, const auto& b) { return a.range.start < b.range.start; });
}

}  // namespace

std::vector<SavedMemory::Contents> SavedMemory::contents_of(const ParsedMapping& mapping) const {
  const MappingRecord& r = mapping.record;
  std::vector<Contents> all;
  for (const AddrRange& run : stored_in({{r.start}, {r.end}})) all.push_back({run, run.start, {}});
  // A private view of a memfd: its own pages, and what the memfd has beside them.
  const bool is_view =
      (r.flags & kMapPrivate) != 0 && static_cast<MappingKind>(r.kind) == MappingKind::kMemfd;
  uint64_t object = (r.flags & kMapPrivate) == 0 || is_view ? r.object : 0;
  if (object == 0) return all;
  uint64_t first = r.file_offset, last = first + (r.end - r.start);  // bytes of the object
  const auto add_of = [&](const SavedMemory& memory, SavedMemory* saver) {
    for (const ParsedMapping& m : memory.image_.meta().mappings) {
      if (&m == &mapping || m.record.object != object || (m.record.flags & kMapPrivate) != 0) continue;
      uint64_t begin = std::max(first, m.record.file_offset);
      uint64_t end = std::min(last, m.record.file_offset + (m.record.end - m.record.start));
      if (begin >= end) continue;
      Addr there{m.record.start + (begin - m.record.file_offset)};
      for (const AddrRange& run : memory.stored_in({there, there + (end - begin)})) {
        Addr here{r.start + (begin - first) + (run.start - there)};
        add_missing(all, {{here, here + run.size()}, run.start, {}, saver});
      }
    }
  };
  add_of(*this, nullptr);
  if ((r.flags & kMapElsewhere) != 0) {
    for (SavedMemory* member : members_) add_of(*member, member);
  }
  for (const ParsedFileContent& c : image_.meta().contents) {
    if ((c.record.open_file != 0 && !is_view) || c.record.object != object) continue;
    uint64_t begin = std::max(first, c.record.offset), end = std::min(last, c.record.offset + c.bytes.size());
    if (begin >= end) continue;
    Addr here{r.start + (begin - first)};
    add_missing(all,
                {{here, here + (end - begin)}, here, c.bytes.subspan(begin - c.record.offset, end - begin)});
  }
  return all;
}

}  // namespace ckpt
