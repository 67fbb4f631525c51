// ImageReader::verify_sections() walks all sections from the header to the trailer and compares the chunks
// with the index; verify_data() reads every extent too.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <tuple>

#include "image/format/checksum.h"
#include "image/format/io_error.h"
#include "image/read/image_reader.h"
#include "image/read/section_reader.h"

namespace ckpt {

namespace {

constexpr uint64_t kReadBytes = 1u << 20;

// Extents are handed out in the order given, which is that of the files; the first error, by position, is the
// one reported.
class ExtentChecker {
 public:
  explicit ExtentChecker(std::vector<ExtentOfImage> order) : order_(std::move(order)) {}

  void run(const std::function<void(uint64_t)>& report) {
    std::unique_ptr<std::byte[]> buffer(new std::byte[kReadBytes]);
    std::vector<std::byte> memory;
    while (!failed_.load(std::memory_order_relaxed)) {
      // relaxed: only the number itself is shared; the extents were there before the threads were.
      size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= order_.size()) return;
      auto result = check(*order_[i].image, *order_[i].extent, buffer.get(), memory);
      if (!result.ok()) {
        std::lock_guard lock(mutex_);
        if (i < failed_at_) {
          failed_at_ = i;
          error_ = result.error();
        }
        failed_.store(true, std::memory_order_relaxed);
        return;
      }
      uint64_t stored = order_[i].extent->stored;
      uint64_t done = done_.fetch_add(stored, std::memory_order_relaxed) + stored;
      if (report) report(done);
    }
  }

  // After all threads have been joined.
  Result<void> result() const {
    if (failed_at_ != SIZE_MAX) return error_;
    return {};
  }

 private:
  static Result<void> check(const ImageReader& image, const Extent& extent, std::byte* buffer,
                            std::vector<std::byte>& memory) {
    if (extent.codec != Codec::kNone) {
      memory.resize(extent.length);
      return image.read_extent(extent, memory);
    }
    StreamingChecksum sum;
    uint64_t at = extent.offset.value, end = at + extent.stored;
    while (at < end) {
      uint64_t n = std::min(kReadBytes, end - at);
      CKPT_TRY(image.bytes().read(buffer, n, at, image.path().c_str()));
      sum.add(buffer, n);
      at += n;
    }
    if (sum.value() == extent.checksum) return {};
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: damaged at byte {}: memory of {:#x} has another checksum; use an older image",
                      shown_path(image.path().c_str()).text, extent.offset.value, extent.address.value);
  }

  std::vector<ExtentOfImage> order_;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  size_t failed_at_ = SIZE_MAX;
  Error error_;
};

bool same_bytes(const Extent& a, const ExtentEntry& b) {
  return a.length == b.length && a.stored == b.stored && a.checksum == b.checksum &&
         static_cast<uint32_t>(a.codec) == b.codec;
}

// Each of them is in the file once. An extent at the same place with other facts stays in the list.
void leave_out_repeated(std::vector<ExtentOfImage>& extents) {
  auto same = [](const ExtentOfImage& a, const ExtentOfImage& b) {
    return a.image == b.image && a.extent->same_place(*b.extent);
  };
  extents.erase(std::unique(extents.begin(), extents.end(), same), extents.end());
}

}  // namespace

std::vector<const Extent*> ImageReader::extents_by_place() const {
  std::vector<const Extent*> order;
  order.reserve(extents_.size());
  for (const Extent& e : extents_) order.push_back(&e);
  std::sort(order.begin(), order.end(), [](const Extent* a, const Extent* b) {
    return std::tie(a->offset, a->address) < std::tie(b->offset, b->address);
  });
  return order;
}

Result<void> ImageReader::verify_sections() const {
  const std::vector<const Extent*> order = extents_by_place();
  SectionReader sections(bytes_, path_.c_str(), brief_);
  uint64_t at = kBlockSize, ordinal = 0;
  size_t next = 0;
  unsigned metas = 0;
  while (at < brief_.file_bytes - kBlockSize) {
    auto section = sections.read_head(at);
    if (!section.ok()) return section.error();
    const SectionHead& head = section->head;
    if (head.ordinal != ordinal++) return damaged("a section is missing or repeated", at);
    uint64_t body = at + head.head_bytes;
    switch (static_cast<SectionKind>(head.kind)) {
      case SectionKind::kMeta:
        if (at != brief_.meta_offset || metas++ != 0) return damaged("a second META section", at);
        if (head.entry_count != 0) return damaged("META lists entries", at);
        break;
      case SectionKind::kInherited:
        if (at != brief_.inherited_offset) return damaged("inherited memory where the trailer has none", at);
        break;
      case SectionKind::kIndex:
        if (at != brief_.index_offset) return damaged("a second index", at);
        break;
      case SectionKind::kChunk: {
        uint64_t offset = body;
        for (const ExtentEntry& e : section->extents) {
          // The extent itself, and memory that repeats it.
          bool listed = false;
          for (; next < order.size() && order[next]->offset.value == offset; next++) {
            if (!same_bytes(*order[next], e)) return damaged("a chunk and the index disagree", at);
            listed = listed || order[next]->address.value == e.address;
          }
          if (!listed || e.reserved != 0) return damaged("a chunk and the index disagree", at);
          offset += round_up_to_block(e.stored);
        }
        if (head.body_checksum != 0 || offset != body + head.body_bytes ||
            head.content_bytes != head.body_bytes) {
          return damaged("a chunk's length is not that of its extents", at);
        }
        break;
      }
      default:
        return damaged("unknown kind of section", at);
    }
    at = body + head.body_bytes;
  }
  if (metas != 1 || next != order.size() || ordinal != brief_.section_count) {
    return damaged("sections are missing", at);
  }
  return {};
}

Result<void> ImageReader::verify_data(unsigned threads, const VerifyProgress& progress) const {
  if (meta_bytes_ == nullptr) {  // opened as a parent
    SectionHead head;
    auto bytes =
        load_section(SectionKind::kMeta, brief_.meta_offset, brief_.meta_bytes, brief_.meta_checksum, &head);
    if (!bytes.ok()) return bytes.error();
    auto meta = parse_meta({bytes->get(), brief_.meta_bytes}, path_.c_str());
    if (!meta.ok()) return meta.error();
  }
  CKPT_TRY(verify_sections());
  std::vector<ExtentOfImage> extents;
  extents.reserve(extents_.size());
  for (const Extent* e : extents_by_place()) extents.push_back({this, e});
  return check_extents(std::move(extents), threads, progress);
}

Result<void> check_extents(std::vector<ExtentOfImage> extents, unsigned threads,
                           const VerifyProgress& progress) {
  leave_out_repeated(extents);
  uint64_t total = 0;
  for (const ExtentOfImage& e : extents) total += e.extent->stored;
  ExtentChecker checker(std::move(extents));
  std::function<void(uint64_t)> report;
  if (progress) report = [&](uint64_t done) { progress(done, total); };
  if (threads > 1) {
    std::thread helper([&] { checker.run({}); });
    checker.run(report);
    helper.join();
  } else {
    checker.run(report);
  }
  return checker.result();
}

}  // namespace ckpt
