#include "restart/plan/memory/fill_plan.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "base/raii_fd.h"

namespace ckpt {
namespace {

// Bytes of a batch: few enough to be in the processor's cache still when they are copied to their place,
// enough to keep a disk busy.
constexpr uint64_t kBatchBytes = 1u << 20;
constexpr uint64_t kMostGap = 16u << 10;  // bytes that are not wanted, read rather than left out
constexpr uint64_t kLeastPut = 1u << 20;  // bytes in the image of a mapping: for less it is not registered
constexpr uint32_t kNoMapping = UINT32_MAX;

uint64_t padded(uint64_t bytes) { return (bytes + kPageSize - 1) & ~(kPageSize - 1); }

// The Feeder puts ordinary pages in place, which need not be cleared first. Memory that was in huge pages, or
// may be, the restorer fills: so it is in huge pages again.
bool may_be_put(const ParsedMapping& m, bool huge_pages_everywhere) {
  constexpr uint32_t kNot = kMapHugeTlb | kMapGrowsDown | kMapHugePage;
  if (m.record.kind != static_cast<uint32_t>(MappingKind::kAnonymous) || (m.record.flags & kNot) != 0)
    return false;
  return !huge_pages_everywhere || (m.record.flags & kMapNoHugePage) != 0;
}

// True also where the setting cannot be read.
bool huge_pages_everywhere() {
  ScopedFd fd(open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t n = fd.valid() ? read(fd.get(), text, sizeof(text)) : 0;
  return n <= 0 || std::string_view(text, static_cast<size_t>(n)).find("[always]") != std::string_view::npos;
}

class Builder {
 public:
  Builder(const ImageChain& image, bool all, const std::function<bool(uint32_t)>& wanted)
      : image_(image), wanted_(wanted) {
    plan_.filled.assign(image.meta().mappings.size(), 0);
    plan_.put.assign(image.meta().mappings.size(), 0);
    plan_.all = all;
  }

  FillPlan build() {
    find_puts();
    parts_.reserve(image_.pieces().size());
    for (const MemoryPiece& p : image_.pieces()) add(p);
    if (plan_.all) add_unwanted();
    // Mostly the writer has gone through memory in order.
    auto before = [](const Part& a, const Part& b) {
      return std::tie(a.image, a.offset, a.extent, a.into) < std::tie(b.image, b.offset, b.extent, b.into);
    };
    if (!std::is_sorted(parts_.begin(), parts_.end(), before))
      std::sort(parts_.begin(), parts_.end(), before);
    for (const Part& p : parts_) place(p);
    for (FillBatch& b : plan_.batches) puts_last(b);
    return std::move(plan_);
  }

 private:
  struct Part {
    uint32_t image, extent;
    uint64_t offset;           // of the extent in the file
    uint64_t into;             // bytes into the extent's memory
    uint64_t address, length;  // length 0: the extent is only checked
    uint32_t mapping;          // that it is put into; kNoMapping: the restorer copies it
  };

  // Which mappings have enough in the image to be registered.
  void find_puts() {
    const auto& mappings = image_.meta().mappings;
    std::vector<uint64_t> bytes(mappings.size(), 0);
    size_t first = 0;
    for (const MemoryPiece& p : image_.pieces()) {
      const uint64_t at = p.address.value, end = at + p.length;
      while (first < mappings.size() && mappings[first].record.end <= at) ++first;
      for (size_t m = first; m < mappings.size() && mappings[m].record.start < end; ++m) {
        bytes[m] += std::min(end, mappings[m].record.end) - std::max(at, mappings[m].record.start);
      }
    }
    const bool huge = huge_pages_everywhere() && image_.meta().process.record.thp_disable == 0;
    for (uint32_t m = 0; m < mappings.size(); ++m) {
      if (bytes[m] < kLeastPut || !wanted_(m) || !may_be_put(mappings[m], huge)) continue;
      plan_.put[m] = 1;
      plan_.puts = true;
    }
  }

  // A piece may span mappings: one part for each run of wanted mappings that the restorer copies, and one for
  // each mapping that the Feeder may fill.
  void add(const MemoryPiece& p) {
    const auto& mappings = image_.meta().mappings;
    uint64_t at = p.address.value, end = at + p.length;
    while (next_ < mappings.size() && mappings[next_].record.end <= at) ++next_;
    uint64_t start = 0, stop = 0;
    uint32_t into = kNoMapping;
    for (size_t m = next_; m < mappings.size() && mappings[m].record.start < end; ++m) {
      if (!wanted_(static_cast<uint32_t>(m))) continue;
      uint64_t from = std::max(at, mappings[m].record.start), to = std::min(end, mappings[m].record.end);
      plan_.filled[m] = 1;
      const uint32_t into_this = plan_.put[m] != 0 ? static_cast<uint32_t>(m) : kNoMapping;
      if (from != stop || into_this != into) {
        add_part(p, start, stop, into);
        start = from;
        into = into_this;
      }
      stop = to;
    }
    add_part(p, start, stop, into);
  }

  void add_part(const MemoryPiece& p, uint64_t start, uint64_t end, uint32_t mapping) {
    if (end <= start) return;
    plan_.bytes += end - start;
    parts_.push_back({p.image, p.extent, image_.extent_of(p).offset.value, p.into + (start - p.address.value),
                      start, end - start, mapping});
  }

  void add_unwanted() {
    std::vector<bool> used(image_.newest().extents().size());
    for (const Part& p : parts_) used[p.extent] = true;
    for (uint32_t e = 0; e < used.size(); ++e) {
      if (!used[e]) parts_.push_back({0, e, image_.newest().extents()[e].offset.value, 0, 0, 0, kNoMapping});
    }
  }

  void place(const Part& p) {
    const Extent& e = image_.image(p.image).extents()[p.extent];
    // The same extent, or one that repeats it: read once, and copied to each of its places.
    const bool again = plan_.any() && plan_.batches.back().image == p.image &&
                       image_.image(p.image).extents()[plan_.extents.back().extent].same_place(e);
    if (!again) {
      const bool packed = e.codec != Codec::kNone;
      if (!fits(p, e)) {
        plan_.batches.push_back({p.image, packed, 0, 0, plan_.reads.size(), 0, plan_.extents.size(), 0,
                                 plan_.fills.size(), 0, 0});
      }
      FillBatch& batch = plan_.batches.back();
      if (batch.reads == 0 || p.offset - read_end() > kMostGap) {
        plan_.reads.push_back({p.offset, 0, batch.stored});
        batch.reads++;
      }
      FillRead& read = plan_.reads.back();
      const uint64_t stored_at = read.at + (p.offset - read.offset);
      read.bytes = p.offset + padded(e.stored) - read.offset;
      plan_.extents.push_back({p.extent, batch.packed ? batch.memory : stored_at, stored_at});
      batch.extents++;
      batch.stored = read.at + read.bytes;
      batch.memory = plan_.extents.back().at + e.length;
      plan_.largest_batch = std::max(plan_.largest_batch, batch.memory);
    }
    if (p.length > 0) add_fill({p.address, p.length, plan_.extents.back().at + p.into}, p.mapping);
  }

  uint64_t read_end() const { return plan_.reads.back().offset + plan_.reads.back().bytes; }

  bool fits(const Part& p, const Extent& e) const {
    if (!plan_.any()) return false;
    const FillBatch& b = plan_.batches.back();
    if (b.image != p.image || (!b.packed && e.codec != Codec::kNone) || p.offset < read_end()) return false;
    const uint64_t gap = p.offset - read_end();
    if (gap > kMostGap && b.reads == kMostReads) return false;
    const uint64_t more = padded(e.stored) + (gap <= kMostGap ? gap : 0);
    return b.stored + more <= kBatchBytes && b.memory + (b.packed ? e.length : more) <= kBatchBytes;
  }

  // Extents are cut small for the sake of increments; what is together here and in memory is one copy.
  void add_fill(const RestorerFill& f, uint32_t mapping) {
    FillBatch& batch = plan_.batches.back();
    if (batch.fills > 0 && fill_mappings_.back() == mapping) {
      RestorerFill& last = plan_.fills.back();
      if (last.address + last.length == f.address && last.from + last.length == f.from) {
        last.length += f.length;
        return;
      }
    }
    plan_.fills.push_back(f);
    fill_mappings_.push_back(mapping);
    batch.fills++;
  }

  // Moves the fills that the Feeder may put behind those that the restorer copies in any case; each kind
  // keeps its order.
  void puts_last(FillBatch& batch) {
    const auto first = fill_mappings_.begin() + static_cast<ptrdiff_t>(batch.first_fill),
               end = first + static_cast<ptrdiff_t>(batch.fills);
    batch.puts = static_cast<uint64_t>(
        std::count_if(first, end, [](uint32_t mapping) { return mapping != kNoMapping; }));
    if (batch.puts == 0 || batch.puts == batch.fills) return;
    std::vector<RestorerFill> copied, put;
    for (uint64_t i = 0; i < batch.fills; ++i) {
      (first[static_cast<ptrdiff_t>(i)] == kNoMapping ? copied : put)
          .push_back(plan_.fills[batch.first_fill + i]);
    }
    std::copy(put.begin(), put.end(),
              std::copy(copied.begin(), copied.end(),
                        plan_.fills.begin() + static_cast<ptrdiff_t>(batch.first_fill)));
  }

  const ImageChain& image_;
  const std::function<bool(uint32_t)>& wanted_;
  FillPlan plan_;
  std::vector<Part> parts_;
  std::vector<uint32_t> fill_mappings_;  // for each fill of the plan
  size_t next_ = 0;
};

}  // namespace

FillPlan make_fill_plan(const ImageChain& image, bool all, const std::function<bool(uint32_t)>& wanted) {
  return Builder(image, all, wanted).build();
}

}  // namespace ckpt
