#include "restart/fill_plan.h"

#include <algorithm>
#include <tuple>

namespace ckpt {
namespace {

// What a processor's cache may still hold when it is copied to its place; and what a disk needs to be busy.
constexpr uint64_t kBatchBytes = 1u << 20;
constexpr uint64_t kMostGap = 64u << 10;  // that is read along: what is not wanted

uint64_t padded(uint64_t bytes) { return (bytes + kPageSize - 1) & ~(kPageSize - 1); }

class Builder {
 public:
  Builder(const ImageChain& image, bool all, const std::function<bool(uint32_t)>& wanted)
      : image_(image), wanted_(wanted) {
    plan_.filled.assign(image.meta().mappings.size(), 0);
    plan_.all = all;
  }

  FillPlan build() {
    parts_.reserve(image_.pieces().size());
    for (const MemoryPiece& p : image_.pieces()) add(p);
    if (plan_.all) add_unwanted();
    // Mostly the writer has gone through memory in order.
    auto before = [](const Part& a, const Part& b) {
      return std::tie(a.image, a.offset, a.extent, a.into) < std::tie(b.image, b.offset, b.extent, b.into);
    };
    if (!std::is_sorted(parts_.begin(), parts_.end(), before)) std::sort(parts_.begin(), parts_.end(), before);
    for (const Part& p : parts_) place(p);
    return std::move(plan_);
  }

 private:
  struct Part {
    uint32_t image, extent;
    uint64_t offset;  // of the extent in the file
    uint64_t into;    // bytes into the extent's memory
    uint64_t address, length;  // length 0: the extent is only checked
  };

  // It may span mappings: one part for each run of wanted ones.
  void add(const MemoryPiece& p) {
    const auto& mappings = image_.meta().mappings;
    uint64_t at = p.address.value, end = at + p.length;
    while (next_ < mappings.size() && mappings[next_].record.end <= at) ++next_;
    uint64_t start = 0, stop = 0;
    for (size_t m = next_; m < mappings.size() && mappings[m].record.start < end; ++m) {
      if (!wanted_(static_cast<uint32_t>(m))) continue;
      uint64_t from = std::max(at, mappings[m].record.start), to = std::min(end, mappings[m].record.end);
      plan_.filled[m] = 1;
      if (from != stop) {
        add_part(p, start, stop);
        start = from;
      }
      stop = to;
    }
    add_part(p, start, stop);
  }

  void add_part(const MemoryPiece& p, uint64_t start, uint64_t end) {
    if (end <= start) return;
    plan_.bytes += end - start;
    parts_.push_back({p.image, p.extent, image_.extent_of(p).offset.value, p.into + (start - p.address.value), start, end - start});
  }

  void add_unwanted() {
    std::vector<bool> used(image_.newest().extents().size());
    for (const Part& p : parts_) used[p.extent] = true;
    for (uint32_t e = 0; e < used.size(); ++e) {
      if (!used[e]) parts_.push_back({0, e, image_.newest().extents()[e].offset.value, 0, 0, 0});
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
        plan_.batches.push_back({p.image, packed, p.offset, 0, 0, plan_.extents.size(), 0, plan_.fills.size(), 0});
      }
      FillBatch& batch = plan_.batches.back();
      plan_.extents.push_back({p.extent, batch.packed ? batch.memory : p.offset - batch.offset});
      batch.extents++;
      batch.stored = p.offset + padded(e.stored) - batch.offset;
      batch.memory = plan_.extents.back().at + e.length;
      plan_.largest_batch = std::max(plan_.largest_batch, batch.memory);
    }
    if (p.length > 0) add_fill({p.address, p.length, plan_.extents.back().at + p.into});
  }

  bool fits(const Part& p, const Extent& e) const {
    if (!plan_.any()) return false;
    const FillBatch& b = plan_.batches.back();
    return b.image == p.image && (b.packed || e.codec == Codec::kNone) && p.offset >= b.offset + b.stored &&
           p.offset - (b.offset + b.stored) <= kMostGap &&
           p.offset + padded(e.stored) - b.offset <= kBatchBytes && b.memory + e.length <= kBatchBytes;
  }

  // Extents are cut small for the sake of increments; what is together here and in memory is one copy.
  void add_fill(const RestorerFill& f) {
    FillBatch& batch = plan_.batches.back();
    if (batch.fills > 0) {
      RestorerFill& last = plan_.fills.back();
      if (last.address + last.length == f.address && last.from + last.length == f.from) {
        last.length += f.length;
        return;
      }
    }
    plan_.fills.push_back(f);
    batch.fills++;
  }

  const ImageChain& image_;
  const std::function<bool(uint32_t)>& wanted_;
  FillPlan plan_;
  std::vector<Part> parts_;
  size_t next_ = 0;
};

}  // namespace

FillPlan make_fill_plan(const ImageChain& image, bool all, const std::function<bool(uint32_t)>& wanted) {
  return Builder(image, all, wanted).build();
}

}  // namespace ckpt
