#include "image/read/image_chain.h"

#include <dirent.h>
#include <errno.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "image/format/image_name.h"
#include "image/format/io_error.h"
#include "image/read/sources/image_spool.h"

namespace ckpt {

namespace {

std::string directory_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

bool is_parent(const ImageBrief& parent, const ImageBrief& child) {
  return std::memcmp(parent.run_id, child.run_id, sizeof(parent.run_id)) == 0 &&
         parent.sequence == child.parent.sequence && parent.meta_checksum == child.parent.state;
}

// The parts of both lists, which are in address order without overlap, that they share.
std::vector<AddrRange> intersection(const std::vector<AddrRange>& a, std::span<const AddrRange> b) {
  std::vector<AddrRange> both;
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    AddrRange common{std::max(a[i].start, b[j].start), std::min(a[i].end, b[j].end)};
    if (!common.empty()) both.push_back(common);
    if (a[i].end < b[j].end) {
      i++;
    } else {
      j++;
    }
  }
  return both;
}

// As long as it is there nobody who prunes removes the image, nor its parents (hold_image() in
// image_directory.h).
class ScopedHold {
 public:
  explicit ScopedHold(const ImageReader& image) : fd_(image.fd()) {
    struct stat file, named;
    // Without locks (NFS, perhaps) it is for whoever prunes to come between.
    refused_ = flock(fd_, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    gone_ = stat(image.path().c_str(), &named) != 0 || fstat(fd_, &file) != 0 ||
            named.st_ino != file.st_ino || named.st_dev != file.st_dev;
  }
  ~ScopedHold() { flock(fd_, LOCK_UN); }
  ScopedHold(const ScopedHold&) = delete;
  ScopedHold& operator=(const ScopedHold&) = delete;
  bool too_late() const { return refused_ || gone_; }

 private:
  int fd_;
  bool refused_ = false, gone_ = false;
};

}  // namespace

Result<ImageReader> open_standard_input(ImageParts parts) {
  auto file = spool_standard_input();
  if (!file.ok()) return file.error();
  auto image = ImageReader::adopt(std::move(*file), kStandardInput, parts);
  if (image.ok() && image->brief().parent.sequence != 0) {
    return make_error(
        ExitCode::kNotFound, ENOENT,
        "{}: an increment to {}, which a stream does not bring; send it with 'ckpt cat', which makes it full",
        kStandardInput, image->brief().parent.name);
  }
  return image;
}

Result<ImageReader> ImageChain::find_parent(const ImageReader& child) const {
  const ParentImage& parent = child.brief().parent;
  const std::string directory = directory_of(child.path()), wanted = directory + "/" + parent.name;
  auto image = ImageReader::open(wanted, ImageParts::kMemory);
  // A key is for both or for neither (image_bytes.h): an encrypted image has no plain parent, nor the other
  // way round.
  if (image.ok() && is_parent(image->brief(), child.brief())) return image;
  if (!image.ok() && image.error().code != ExitCode::kNotFound) return image;
  // Renamed, or another program's under its name: its contents tell.
  if (DIR* list = opendir(directory.c_str())) {
    std::vector<std::string> names;
    while (const dirent* d = readdir(list)) {
      ParsedImageName parsed;
      if (parse_image_name(d->d_name, &parsed) && !parsed.temporary && parsed.sequence == parent.sequence) {
        names.emplace_back(d->d_name);
      }
    }
    closedir(list);
    for (const std::string& name : names) {
      if (name == parent.name) continue;
      auto other = ImageReader::open(directory + "/" + name, ImageParts::kMemory);
      if (other.ok() && is_parent(other->brief(), child.brief())) return other;
    }
  }
  if (!image.ok()) {
    return make_error(
        ExitCode::kNotFound, ENOENT,
        "{}: missing, but {} is an increment to it; bring that file back, or use an older image",
        shown_path(wanted.c_str()).text, shown_path(child.path().c_str()).text);
  }
  return make_error(
      ExitCode::kImageDamaged, 0,
      "{}: not the image that {} is an increment to; bring that one back, or use an older image",
      shown_path(wanted.c_str()).text, shown_path(child.path().c_str()).text);
}

Result<ImageChain> ImageChain::open(const std::string& path) {
  ImageChain chain;
  auto image = path == "-" ? open_standard_input(ImageParts::kAll) : ImageReader::open(path);
  if (!image.ok()) return image.error();
  chain.images_.push_back(std::move(*image));
  std::optional<ScopedHold> hold;
  if (chain.brief().parent.sequence != 0) hold.emplace(chain.newest());
  while (chain.images_.back().brief().parent.sequence != 0) {
    const ImageReader& child = chain.images_.back();
    // Sequences fall from child to parent, so this ends; the limit is for files that lie.
    if (chain.size() > kMaxChainLength) {
      return make_error(ExitCode::kImageDamaged, 0,
                        "{}: damaged: a chain of more than {} images; use an older image",
                        shown_path(path.c_str()).text, kMaxChainLength);
    }
    auto parent = chain.find_parent(child);
    if (!parent.ok() && parent.error().code == ExitCode::kNotFound && hold->too_late()) {
      return make_error(
          ExitCode::kNotFound, ENOENT,
          "{}: removed while it was opened, as programs do with their old images; name a newer one",
          shown_path(path.c_str()).text);
    }
    if (!parent.ok()) return parent.error();
    chain.images_.push_back(std::move(*parent));
  }
  chain.merge();
  return chain;
}

// From the newest to the oldest: each image gives, of the memory that is still wanted of it, what its
// extents hold; what it says is unchanged since its parent is wanted of that one.
void ImageChain::merge() {
  std::vector<AddrRange> wanted{{{0}, {UINT64_MAX}}};
  pieces_.reserve(newest().extents().size());
  for (uint32_t i = 0; i < images_.size() && !wanted.empty(); i++) {
    auto extents = images_[i].extents();
    size_t w = 0;
    for (uint32_t e = 0; e < extents.size(); e++) {
      Addr start = extents[e].address, end = start + extents[e].length;
      while (w < wanted.size() && wanted[w].end <= start) w++;
      for (size_t at = w; at < wanted.size() && wanted[at].start < end; at++) {
        Addr from = std::max(start, wanted[at].start), to = std::min(end, wanted[at].end);
        pieces_.push_back(
            {from, static_cast<uint32_t>(to - from), static_cast<uint32_t>(from - start), i, e});
        memory_bytes_ += to - from;
      }
    }
    wanted = intersection(wanted, images_[i].inherited());
  }
  if (size() == 1) return;  // in that order already
  std::sort(pieces_.begin(), pieces_.end(),
            [](const MemoryPiece& a, const MemoryPiece& b) { return a.address < b.address; });
}

uint64_t ImageChain::file_bytes() const {
  uint64_t bytes = 0;
  for (const ImageReader& image : images_) bytes += image.brief().file_bytes;
  return bytes;
}

Result<void> ImageChain::verify_all(unsigned threads, const VerifyProgress& progress) const {
  uint64_t total = 0, before = 0;
  for (const ImageReader& image : images_) total += image.brief().memory_bytes;
  for (const ImageReader& image : images_) {
    CKPT_TRY(image.verify_data(threads, [&](uint64_t done, uint64_t) {
      if (progress) progress(std::min(before + done, total), total);
    }));
    before += image.brief().memory_bytes;
  }
  return {};
}

Result<void> ImageChain::verify_used(unsigned threads, const VerifyProgress& progress) const {
  if (size() == 1) return newest().verify_data(threads, progress);
  std::vector<std::vector<bool>> used(size());
  for (size_t i = 0; i < size(); i++) used[i].resize(images_[i].extents().size());
  for (const MemoryPiece& p : pieces_) used[p.image][p.extent] = true;
  std::vector<ExtentOfImage> order;
  for (size_t i = 0; i < size(); i++) {
    size_t first = order.size();
    auto extents = images_[i].extents();
    for (size_t e = 0; e < extents.size(); e++) {
      if (used[i][e]) order.push_back({&images_[i], &extents[e]});
    }
    std::sort(
        order.begin() + static_cast<ptrdiff_t>(first), order.end(),
        [](const ExtentOfImage& a, const ExtentOfImage& b) { return a.extent->offset < b.extent->offset; });
  }
  return check_extents(std::move(order), threads, progress);
}

}  // namespace ckpt
