#include "libckpt_rt/checkpoint/stages/memory/eager_copies.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "libckpt_rt/capture/advice/still_memory.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/memory/page_scan.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint64_t kHugePage = 2 << 20;  // bytes

constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void EagerCopies::make_lists(Arena& arena) {
  runs_ = ArenaVector<AddrRange>(arena);
  copied_ = ArenaVector<CopiedSegment>(arena);
}

uint64_t EagerCopies::bytes() const {
  uint64_t bytes = 0;
  for (const CopiedSegment& s : copied_)
    bytes += static_cast<uint64_t>(std::popcount(s.page_mask)) * kPageSize;
  return bytes;
}

// In huge pages, where there are some: the kernel pins each page that it copies to, and a huge one it pins
// once. block: room that was reserved so before; empty: there is none.
bool EagerCopies::reserve(uint64_t bytes, Workspace& space, AddrRange block) {
  const uint64_t whole = round_up(bytes, kHugePage);
  if (!block.empty())
    arena_.adopt(block);
  else if (!arena_.reserve(whole + kHugePage))
    return false;
  const AddrRange ours = room_ = arena_.range();
  if (!space.own(ours)) return false;
  const uint64_t start = round_up(ours.start.value, kHugePage);
  arena_.allocate(start - ours.start.value, 1);
  if (!block.empty()) return true;
  sys::call(__NR_madvise, ours.start.value, ours.size(), MADV_DONTFORK);
  sys::call(__NR_madvise, start, whole, MADV_HUGEPAGE);
  return true;
}

// Without it all is reserved, and touched for the first time, in the pause.
void EagerCopies::make_room_for_child(uint64_t bytes, Workspace& space) {
  constexpr uint64_t kFew = 1 << 20;
  if (bytes >= kFew && reserve(bytes + bytes / 16, space, {})) touch(bytes);
}

// Children that the program makes get none of it, before and after.
void EagerCopies::show_to_child(bool shown) const {
  const AddrRange room = arena_.range();
  if (!room.empty())
    sys::call(__NR_madvise, room.start.value, room.size(), long{shown ? MADV_DOFORK : MADV_DONTFORK});
}

// Touches the memory that is allocated next.
long EagerCopies::touch(uint64_t bytes) const {
  return sys::call(__NR_madvise, arena_.range().start.value + arena_.used(), bytes, MADV_POPULATE_WRITE);
}

Result<void> EagerCopies::make_room_for_all(uint64_t resident, Workspace& space) {
  if (!reserve(resident + resident / 16 + (16 << 20), space))
    return no_memory("a copy of all memory (mode concurrent)");
  if (const long r = touch(resident); r != 0 && r != -EINVAL) {
    return make_error(
        ExitCode::kUnavailable, static_cast<int>(r),
        "no memory for a second copy of all memory, {} MiB ({}); mode concurrent needs it, realtime does not",
        resident >> 20, errno_name(static_cast<int>(r)));
  }
  return {};
}

Result<void> EagerCopies::make_room(const MemoryMap& map, PageScan& pages, size_t threads, Workspace& space,
                                    SpareMemory& spare) {
  constexpr uint64_t kStack = 12 << 10, kMost = 64 << 20;  // bytes
  ArenaVector<AddrRange> runs(space.arena());
  for (const Mapping& m : map.mappings()) {
    if (m.handling != Handling::kEager) continue;
    // A mapping that went since the map was read needs no room, and must not cost the checkpoint.
    [[maybe_unused]] const Result<void> scanned = pages.scan(m, runs);
  }
  uint64_t bytes = (1 << 20) + threads * kStack;
  for (const AddrRange& r : runs) bytes += r.size();
  if (bytes > kMost) bytes = kMost;
  const uint64_t whole = round_up(bytes, kHugePage) + kHugePage;
  // In the list of what is ours since Watch::own_ranges(); of another size it is unmapped here, and the
  // program runs.
  const AddrRange before = spare.range(SpareMemory::Use::kEagerCopies);
  const SpareMemory::Block block = spare.take(SpareMemory::Use::kEagerCopies, whole, whole);
  if (block.range.empty() && !before.empty()) space.disown(before);
  if (!reserve(bytes, space, block.range)) return no_memory("copies made in the pause");
  touch(bytes);
  return {};
}

void EagerCopies::leave_to(SpareMemory& spare) {
  if (room_.empty() || arena_.range() != room_ || room_.size() > 2 * kHugePage) return;
  AddrRange touched;
  const AddrRange block = arena_.hand_over(&touched);
  // The part that was touched ahead, which the kernel does in whole huge pages where it can.
  touched.start = Addr{round_up(block.start.value, kHugePage)};
  touched.end = touched.start + kHugePage;
  spare.give(SpareMemory::Use::kEagerCopies, {block, touched});
}

Result<void> EagerCopies::add(std::span<const AddrRange> runs) {
  for (const AddrRange& r : runs) {
    if (!runs_.push_back(r)) return no_memory("the list of pages");
  }
  return {};
}

Result<void> EagerCopies::copy(const MemoryMap& map, StillMemory& memory) {
  size_t bytes = 0;
  for (const AddrRange& run : runs_) bytes += run.size();
  if (bytes == 0) return {};
  // At most one for each 64 pages, and one more for each run.
  if (!copied_.reserve(bytes / (64 * kPageSize) + runs_.size())) return no_memory("the list of pages");
  // Each piece is allocated on a page of its own.
  if (bytes > arena_.range().size() - arena_.used()) {
    arena_.release();
    if (!arena_.reserve(bytes)) return no_memory("copies made in the pause");
    // Not kept from children: in mode fork the child writes these copies.
  }
  constexpr size_t kAtOnce = 64;
  Piece pieces[kAtOnce];
  iovec to[kAtOnce], from[kAtOnce];
  size_t count = 0;
  auto take_all = [&]() -> Result<void> {
    const size_t read = memory.read_many({to, count}, {from, count});
    for (size_t i = 0; i < count; ++i) CKPT_TRY(take(pieces[i], i < read, memory));
    count = 0;
    return {};
  };
  for (const AddrRange& run : runs_) {
    const Mapping* m = map.find(run.start);
    const bool readable = m != nullptr && (m->prot & PROT_READ) != 0, file = m != nullptr && m->inode != 0;
    for (uint64_t done = 0; done < run.size();) {
      uint64_t n = run.size() - done < 64 * kPageSize ? run.size() - done : 64 * kPageSize;
      auto* buffer = static_cast<std::byte*>(arena_.allocate(n, kPageSize));
      if (buffer == nullptr) return no_memory("copies made in the pause");
      const Piece piece{run.start + done, n, buffer, readable, file};
      done += n;
      if (!readable) {
        CKPT_TRY(take(piece, false, memory));
        continue;
      }
      to[count] = {buffer, n};
      from[count] = {piece.from.as<void>(), n};
      pieces[count++] = piece;
      if (count == kAtOnce) CKPT_TRY(take_all());
    }
  }
  CKPT_TRY(take_all());
  return {};
}

Result<void> EagerCopies::take(const Piece& copy, bool read, StillMemory& memory) {
  const uint64_t pages = copy.bytes / kPageSize;
  uint64_t have = ~0ull;
  if (!read && memory.read(copy.to, copy.from, copy.bytes, copy.readable) != 0) {
    // Pages of a file mapping beyond the file's end do not exist; those before it do.
    have = 0;
    for (uint64_t i = 0; i < pages; ++i) {
      if (memory.read(copy.to + i * kPageSize, copy.from + i * kPageSize, kPageSize, copy.readable) == 0) {
        have |= 1ull << i;
      } else if (!copy.file) {
        return make_error(ExitCode::kInternal, EFAULT, "cannot read the program's memory at {:#x}",
                          copy.from.value + i * kPageSize);
      }
    }
  }
  uint64_t mask = 0;
  for (uint64_t i = 0; i < pages; ++i) {
    // A page of zeros in a file mapping differs from the file: it must be in the image.
    if ((have >> i & 1) != 0 && (copy.file || !page_is_zero(copy.to + i * kPageSize))) mask |= 1ull << i;
  }
  if (mask != 0 && !copied_.push_back({copy.from, mask, copy.to, kNoBuffer}))
    return no_memory("the list of pages");
  return {};
}

}  // namespace ckpt
