#include "cli/back/page_source.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

namespace ckpt::cli {

namespace {

AddrRange common(AddrRange a, AddrRange b) { return {std::max(a.start, b.start), std::min(a.end, b.end)}; }

}  // namespace

// Tells the kernel all ranges ahead: a disk is fast only with many requests at once.
void PageSource::advise(const std::vector<AddrRange>& ranges) const {
  size_t r = 0;
  for (const MemoryPiece& p : image_.pieces()) {
    while (r < ranges.size() && ranges[r].end <= p.address) ++r;
    if (r == ranges.size()) return;
    if (ranges[r].start >= p.address + p.length) continue;
    const Extent& e = image_.extent_of(p);
    const ImageReader& image = image_.image(p.image);
    if (image.stored_plainly())
      posix_fadvise(image.fd(), static_cast<off_t>(e.offset.value), e.stored, POSIX_FADV_WILLNEED);
  }
}

Result<void> PageSource::read(AddrRange range, bool only_check) {
  const auto pieces = image_.pieces();
  auto p = std::lower_bound(pieces.begin(), pieces.end(), range.start, [](const MemoryPiece& piece, Addr at) {
    return piece.address + piece.length <= at;
  });
  for (; p != pieces.end() && p->address < range.end; ++p) {
    const AddrRange part = common(range, {p->address, p->address + p->length});
    if (part.empty()) continue;
    const Extent& e = image_.extent_of(*p);
    const ImageReader& image = image_.image(p->image);
    const bool whole = part.size() == e.length && p->into == 0 && part.start == p->address;
    if (whole && !only_check) {
      CKPT_TRY(image.read_extent(e, data_.subspan(used_, e.length)));
    } else {
      if (extent_image_ != p->image || extent_index_ != p->extent) {
        extent_.resize(e.length);
        CKPT_TRY(image.read_extent(e, extent_));
        extent_image_ = p->image;
        extent_index_ = p->extent;
      }
      if (only_check) continue;
      std::memcpy(&data_[used_], &extent_[p->into + (part.start - p->address)], part.size());
    }
    if (!fresh_.empty() && fresh_.back().memory.end == part.start &&
        fresh_.back().at + fresh_.back().memory.size() == used_) {
      fresh_.back().memory.end = part.end;
    } else {
      fresh_.push_back({part, used_});
    }
    used_ += part.size();
  }
  return {};
}

Result<void> PageSource::load(const std::vector<AddrRange>& wanted) {
  const std::vector<AddrRange> absent = missing(wanted);
  advise(absent);
  fresh_.clear();
  for (bool late : {true, false}) {
    for (const AddrRange& whole : absent) {
      const AddrRange mine = common(whole, late_);
      if (late) {
        if (mine.empty()) continue;
        if (mine.size() > data_.size() - used_)
          return make_error(ExitCode::kInternal, 0, "no room for the library's own data");
        CKPT_TRY(read(mine, false));
        continue;
      }
      for (AddrRange rest : {AddrRange{whole.start, std::min(whole.end, late_.start)},
                             AddrRange{std::max(whole.start, late_.end), whole.end}}) {
        if (rest.start >= rest.end) continue;
        const uint64_t room = data_.size() - used_;
        if (room == 0) break;
        if (rest.size() > room) rest.end = rest.start + room;
        CKPT_TRY(read(rest, false));
      }
    }
    if (late && parts_.empty()) first_free_ = used_;
  }
  parts_.insert(parts_.end(), fresh_.begin(), fresh_.end());
  fresh_.clear();
  std::sort(parts_.begin(), parts_.end(),
            [](const Part& a, const Part& b) { return a.memory.start < b.memory.start; });
  return {};
}

std::vector<BackFill> PageSource::fills(const std::vector<AddrRange>& wanted) const {
  std::vector<BackFill> fills;
  size_t p = 0;
  for (const AddrRange& range : wanted) {
    while (p < parts_.size() && parts_[p].memory.end <= range.start) ++p;
    for (size_t q = p; q < parts_.size() && parts_[q].memory.start < range.end; ++q) {
      const AddrRange part = common(range, parts_[q].memory);
      // A part may reach over the border of the library's own data.
      for (AddrRange piece : {AddrRange{part.start, std::min(part.end, late_.start)}, common(part, late_),
                              AddrRange{std::max(part.start, late_.end), part.end}}) {
        if (piece.start >= piece.end) continue;
        const uint64_t at = parts_[q].at + (piece.start - parts_[q].memory.start);
        const bool late = piece.start >= late_.start && piece.end <= late_.end;
        fills.push_back({piece.start.value, piece.size(), at, late ? 1u : 0u, 0});
      }
    }
  }
  return fills;
}

std::vector<AddrRange> PageSource::missing(const std::vector<AddrRange>& wanted) const {
  std::vector<AddrRange> absent;
  size_t p = 0;
  for (AddrRange range : wanted) {
    while (p < parts_.size() && parts_[p].memory.end <= range.start) ++p;
    for (size_t q = p; q < parts_.size() && parts_[q].memory.start < range.end; ++q) {
      if (range.start < parts_[q].memory.start) absent.push_back({range.start, parts_[q].memory.start});
      range.start = std::max(range.start, parts_[q].memory.end);
    }
    if (range.start < range.end) absent.push_back(range);
  }
  return absent;
}

Result<void> PageSource::check(const std::vector<AddrRange>& missing) {
  for (const AddrRange& range : missing) CKPT_TRY(read(range, true));
  return {};
}

Result<std::vector<BackFill>> PageSource::next(std::vector<AddrRange>& missing) {
  parts_.clear();
  used_ = first_free_;
  const std::vector<AddrRange> wanted = missing;
  CKPT_TRY(load(wanted));
  missing = this->missing(wanted);
  return fills(wanted);
}

}  // namespace ckpt::cli
