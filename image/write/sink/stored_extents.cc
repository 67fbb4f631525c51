#include "image/write/sink/stored_extents.h"

#include <errno.h>

#include <algorithm>

#include "image/format/io_error.h"
#include "base/preload_rules.h"

namespace ckpt {

void StoredExtents::start(Arena& arena, const char* path) {
  path_ = path;
  index_ = ArenaVector<IndexEntry>(arena);
  inherited_ = ArenaVector<InheritedRun>(arena);
  repeated_bytes_ = 0;
}

Result<void> StoredExtents::look_for_repeated(int fd, Arena& arena) {
  if (repeated_.start(fd, index_, arena)) return {};
  return make_error(ExitCode::kInternal, ENOMEM, "the arena is too small to find repeated memory");
}

// An extent is listed in the chunk that holds it and in the index, a repeated one in the index only.
Result<bool> StoredExtents::list_repeated(const ExtentEntry& e, std::span<const std::byte> bytes,
                                          const SlotWriter& slots) {
  if (!repeated_.active()) return false;
  IndexEntry entry{e.address, 0, e.length, e.stored, e.checksum, e.codec, 0};
  entry.offset = repeated_.candidate(entry);
  if (entry.offset == 0 || !repeated_.same(entry.offset, bytes, slots.written_from(entry.offset)))
    return false;
  CKPT_TRY(add(entry));
  repeated_bytes_ += round_up_to_block(e.stored);
  return true;
}

Result<void> StoredExtents::list(const ExtentEntry& e, uint64_t offset, std::span<const std::byte> bytes) {
  CKPT_TRY(add({e.address, offset, e.length, e.stored, e.checksum, e.codec, 0}));
  if (repeated_.active()) repeated_.remember(bytes);
  return {};
}

Result<void> StoredExtents::add(const IndexEntry& entry) {
  if (index_.push_back(entry)) return {};
  return make_error(ExitCode::kInternal, ENOMEM,
                    "the index of {} does not fit into its arena after {} extents", shown_path(path_).text,
                    index_.size());
}

Result<void> StoredExtents::inherit(std::span<const AddrRange> runs) {
  for (const AddrRange& run : runs) {
    if (run.empty()) continue;
    if (inherited_.size() > 0) {
      InheritedRun& last = inherited_[inherited_.size() - 1];
      if (last.address + last.length == run.start.value) {
        last.length += run.size();
        continue;
      }
    }
    if (!inherited_.push_back({run.start.value, run.size()})) {
      return make_error(ExitCode::kInternal, ENOMEM,
                        "the inherited memory of {} does not fit into its arena after {} runs",
                        shown_path(path_).text, inherited_.size());
    }
  }
  return {};
}

Error StoredExtents::copied_twice(uint64_t address) const {
  return make_error(ExitCode::kInternal, 0, "the page at {:#x} was copied or inherited twice for {}", address,
                    shown_path(path_).text);
}

uint64_t StoredExtents::listed_bytes() const {
  uint64_t bytes = 0;
  for (const IndexEntry& entry : index_) bytes += entry.length;
  return bytes;
}

Result<void> StoredExtents::sort_and_check() {
  std::sort(index_.begin(), index_.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.address < b.address; });
  for (size_t i = 1; i < index_.size(); i++) {
    if (index_[i - 1].address + index_[i - 1].length > index_[i].address)
      return copied_twice(index_[i].address);
  }
  std::sort(inherited_.begin(), inherited_.end(),
            [](const InheritedRun& a, const InheritedRun& b) { return a.address < b.address; });
  size_t e = 0;
  for (size_t i = 0; i < inherited_.size(); i++) {
    const InheritedRun& run = inherited_[i];
    if (i > 0 && inherited_[i - 1].address + inherited_[i - 1].length > run.address)
      return copied_twice(run.address);
    while (e < index_.size() && index_[e].address + index_[e].length <= run.address) e++;
    if (e < index_.size() && index_[e].address < run.address + run.length)
      return copied_twice(index_[e].address);
  }
  return {};
}

}  // namespace ckpt
