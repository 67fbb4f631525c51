#include "restart/fill_plan.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

namespace ckpt {
namespace {

class Builder {
 public:
  Builder(const ImageReader& image, const std::function<bool(uint32_t)>& wanted) : image_(image), wanted_(wanted) {
    plan_.filled.assign(image.meta().mappings.size(), 0);
  }

  FillPlan build() {
    auto extents = image_.extents();
    for (uint32_t i = 0; i < extents.size(); ++i) add_extent(i, extents[i]);
    std::sort(stored_.begin(), stored_.end(),
              [](const RestorerFill& a, const RestorerFill& b) { return a.image_offset < b.image_offset; });
    plan_.fills = std::move(stored_);
    plan_.fills.insert(plan_.fills.end(), fed_.begin(), fed_.end());
    return std::move(plan_);
  }

 private:
  // An extent may span mappings: one piece for each run of wanted ones.
  void add_extent(uint32_t number, const Extent& e) {
    const auto& mappings = image_.meta().mappings;
    uint64_t at = e.address.value, end = at + e.length;
    while (next_ < mappings.size() && mappings[next_].record.end <= at) ++next_;
    uint64_t piece_start = 0, piece_end = 0;
    for (size_t m = next_; m < mappings.size() && mappings[m].record.start < end; ++m) {
      if (!wanted_(static_cast<uint32_t>(m))) continue;
      uint64_t from = std::max(at, mappings[m].record.start), to = std::min(end, mappings[m].record.end);
      plan_.filled[m] = 1;
      if (from != piece_end) {
        add_piece(number, e, piece_start, piece_end);
        piece_start = from;
      }
      piece_end = to;
    }
    add_piece(number, e, piece_start, piece_end);
  }

  void add_piece(uint32_t number, const Extent& e, uint64_t start, uint64_t end) {
    if (end <= start) return;
    uint64_t into = start - e.address.value;
    plan_.bytes += end - start;
    if (e.codec == Codec::kNone) {
      stored_.push_back({start, end - start, e.offset.value + into});
    } else {
      fed_.push_back({start, end - start, kFromFeed});
      plan_.feed.push_back({number, into, end - start});
    }
  }

  const ImageReader& image_;
  const std::function<bool(uint32_t)>& wanted_;
  FillPlan plan_;
  std::vector<RestorerFill> stored_, fed_;
  size_t next_ = 0;
};

}  // namespace

FillPlan make_fill_plan(const ImageReader& image, const std::function<bool(uint32_t)>& wanted) {
  return Builder(image, wanted).build();
}

Result<void> Feeder::start(ScopedFd pipe) {
  pipe_ = std::move(pipe);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int e = pthread_create(&thread_, nullptr, run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (e != 0) return make_error(ExitCode::kSystem, e, "no thread to unpack the image ({})", errno_name(e));
  started_ = true;
  return {};
}

void* Feeder::run(void* self) {
  auto* feeder = static_cast<Feeder*>(self);
  if (auto r = feeder->feed_all(); !r.ok()) feeder->error_ = r.error();
  feeder->pipe_.reset();
  return nullptr;
}

Result<void> Feeder::feed_all() {
  std::vector<std::byte> memory;
  uint32_t have = ~0u;
  for (const FeedPiece& piece : plan_.feed) {
    const Extent& extent = image_.extents()[piece.extent];
    if (piece.extent != have) {
      memory.resize(extent.length);
      CKPT_TRY(image_.read_extent(extent, memory));
      have = piece.extent;
    }
    for (uint64_t at = 0; at < piece.length;) {
      ssize_t n = write(pipe_.get(), &memory[piece.offset + at], piece.length - at);
      if (n < 0) {
        // The new process is gone; its own message says why.
        if (errno == EPIPE) return {};
        return make_error(ExitCode::kSystem, errno, "cannot feed the new process ({})", errno_name(errno));
      }
      at += static_cast<uint64_t>(n);
    }
  }
  return {};
}

Result<void> Feeder::join() {
  if (started_) pthread_join(thread_, nullptr);
  started_ = false;
  if (error_) return *error_;
  return {};
}

}  // namespace ckpt
