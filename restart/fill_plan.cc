#include "restart/fill_plan.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

namespace ckpt {
namespace {

class Builder {
 public:
  Builder(const ImageChain& image, const std::function<bool(uint32_t)>& wanted) : image_(image), wanted_(wanted) {
    plan_.filled.assign(image.meta().mappings.size(), 0);
  }

  FillPlan build() {
    for (const MemoryPiece& p : image_.pieces()) add(p);
    std::sort(stored_.begin(), stored_.end(), [](const RestorerFill& a, const RestorerFill& b) {
      return std::tie(a.image, a.image_offset) < std::tie(b.image, b.image_offset);
    });
    join_neighbours();
    plan_.fills = std::move(stored_);
    plan_.fills.insert(plan_.fills.end(), fed_.begin(), fed_.end());
    return std::move(plan_);
  }

 private:
  // It may span mappings: one fill for each run of wanted ones.
  void add(const MemoryPiece& p) {
    const auto& mappings = image_.meta().mappings;
    uint64_t at = p.address.value, end = at + p.length;
    while (next_ < mappings.size() && mappings[next_].record.end <= at) ++next_;
    uint64_t piece_start = 0, piece_end = 0;
    for (size_t m = next_; m < mappings.size() && mappings[m].record.start < end; ++m) {
      if (!wanted_(static_cast<uint32_t>(m))) continue;
      uint64_t from = std::max(at, mappings[m].record.start), to = std::min(end, mappings[m].record.end);
      plan_.filled[m] = 1;
      if (from != piece_end) {
        add_part(p, piece_start, piece_end);
        piece_start = from;
      }
      piece_end = to;
    }
    add_part(p, piece_start, piece_end);
  }

  void add_part(const MemoryPiece& p, uint64_t start, uint64_t end) {
    if (end <= start) return;
    const Extent& e = image_.extent_of(p);
    uint64_t into = p.into + (start - p.address.value);
    plan_.bytes += end - start;
    if (e.codec == Codec::kNone && image_.image(p.image).stored_plainly()) {
      stored_.push_back({start, end - start, e.offset.value + into, p.image});
    } else {
      fed_.push_back({start, end - start, kFromFeed, p.image});
      plan_.feed.push_back({p.image, p.extent, into, end - start});
    }
  }

  // Extents are cut small for the sake of increments; what is together in file and memory is one read.
  void join_neighbours() {
    size_t n = 0;
    for (const RestorerFill& f : stored_) {
      if (n > 0) {
        RestorerFill& last = stored_[n - 1];
        if (last.image == f.image && last.address + last.length == f.address &&
            last.image_offset + last.length == f.image_offset) {
          last.length += f.length;
          continue;
        }
      }
      stored_[n++] = f;
    }
    stored_.resize(n);
  }

  const ImageChain& image_;
  const std::function<bool(uint32_t)>& wanted_;
  FillPlan plan_;
  std::vector<RestorerFill> stored_, fed_;
  size_t next_ = 0;
};

}  // namespace

FillPlan make_fill_plan(const ImageChain& image, const std::function<bool(uint32_t)>& wanted) {
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
  const Extent* have = nullptr;
  for (const FeedPiece& piece : plan_.feed) {
    const ImageReader& image = image_.image(piece.image);
    const Extent& extent = image.extents()[piece.extent];
    if (&extent != have) {
      memory.resize(extent.length);
      CKPT_TRY(image.read_extent(extent, memory));
      have = &extent;
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
