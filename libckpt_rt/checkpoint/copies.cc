// What CheckpointRun copies while threads stand still: room for it, and the copies.
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "libckpt_rt/checkpoint/run.h"

namespace ckpt {

// Room for a copy of all memory, touched ahead of the pause in which the copy is made.
Result<void> CheckpointRun::prepare_copy_of_all(uint64_t resident) {
  if (!eager_arena_.reserve(resident + resident / 16 + (16 << 20)) || !own_.push_back(eager_arena_.range())) {
    return no_memory("a copy of all memory (mode concurrent)");
  }
  const AddrRange ours = eager_arena_.range();
  sys::call(__NR_madvise, ours.start.value, ours.size(), MADV_DONTFORK);
  if (const long r = sys::call(__NR_madvise, ours.start.value, resident, MADV_POPULATE_WRITE);
      r != 0 && r != -EINVAL) {
    return make_error(
        ExitCode::kUnavailable, static_cast<int>(r),
        "no memory for a second copy of all memory, {} MiB ({}); mode concurrent needs it, realtime does not",
        resident >> 20, errno_name(static_cast<int>(r)));
  }
  return {};
}

// Memory for copies made in the pause, touched ahead of it. More is taken in the pause if this is not enough.
Result<void> CheckpointRun::prepare_eager_copies(const MemoryMap& map, size_t threads) {
  constexpr uint64_t kStack = 12 << 10, kMost = 64 << 20;  // bytes
  ArenaVector<AddrRange> runs(arena_);
  for (const Mapping& m : map.mappings()) {
    if (m.handling != Handling::kEager) continue;
    // One that went since the map was read needs no room, and must not cost the checkpoint.
    [[maybe_unused]] const Result<void> scanned = pages_.scan(m, runs);
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

Result<void> CheckpointRun::add_eager(std::span<const AddrRange> runs) {
  for (const AddrRange& r : runs) {
    if (!eager_.push_back({r.start, r.size(), nullptr, kNoBuffer})) return no_memory("the list of pages");
  }
  return {};
}

Result<void> CheckpointRun::copy_eagerly() {
  // list_pages left runs in eager_: base and length (in page_mask). Here they become copied segments.
  ArenaVector<CopiedSegment> copied(arena_);
  size_t bytes = 0;
  for (const CopiedSegment& run : eager_) bytes += run.page_mask;
  if (bytes == 0) return {};
  // Each piece is allocated on a page of its own.
  if (bytes > eager_arena_.range().size()) {
    eager_arena_.release();
    if (!eager_arena_.reserve(bytes)) return no_memory("copies made in the pause");
  }
  constexpr size_t kAtOnce = 64;
  EagerCopy pieces[kAtOnce];
  iovec to[kAtOnce], from[kAtOnce];
  size_t count = 0;
  auto take = [&]() -> Result<void> {
    const size_t read = StillMemory::read_many({to, count}, {from, count});
    for (size_t i = 0; i < count; ++i) CKPT_TRY(take_eager_copy(pieces[i], i < read, copied));
    count = 0;
    return {};
  };
  for (const CopiedSegment& run : eager_) {
    const Mapping* m = map_.find(run.base);
    const bool readable = m != nullptr && (m->prot & PROT_READ) != 0, file = m != nullptr && m->inode != 0;
    for (uint64_t done = 0; done < run.page_mask;) {
      uint64_t n = run.page_mask - done < 64 * kPageSize ? run.page_mask - done : 64 * kPageSize;
      auto* buffer = static_cast<std::byte*>(eager_arena_.allocate(n, kPageSize));
      if (buffer == nullptr) return no_memory("copies made in the pause");
      const EagerCopy piece{run.base + done, n, buffer, readable, file};
      done += n;
      if (!readable) {
        CKPT_TRY(take_eager_copy(piece, false, copied));
        continue;
      }
      to[count] = {buffer, n};
      from[count] = {piece.from.as<void>(), n};
      pieces[count++] = piece;
      if (count == kAtOnce) CKPT_TRY(take());
    }
  }
  CKPT_TRY(take());
  eager_ = copied;
  return {};
}

Result<void> CheckpointRun::take_eager_copy(const EagerCopy& copy, bool read,
                                            ArenaVector<CopiedSegment>& copied) {
  const uint64_t pages = copy.bytes / kPageSize;
  uint64_t have = ~0ull;
  if (!read && still_memory_.read(copy.to, copy.from, copy.bytes, copy.readable) != 0) {
    // Pages of a file mapping beyond the file's end do not exist; those before it do.
    have = 0;
    for (uint64_t i = 0; i < pages; ++i) {
      if (still_memory_.read(copy.to + i * kPageSize, copy.from + i * kPageSize, kPageSize, copy.readable) ==
          0) {
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
  if (mask != 0 && !copied.push_back({copy.from, mask, copy.to, kNoBuffer}))
    return no_memory("the list of pages");
  return {};
}

}  // namespace ckpt
