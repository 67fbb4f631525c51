// An image as a reader sees it. open() checks header, trailer, index and META against each other and
// against every rule of the format; verify_data() reads the rest of the file too.
//
// Owner:     image/read. Callers: ckpt-restart, ckpt; ordinary C++. One thread opens it;
//            several may call const functions at once, as those of the Feeder and the loader do.
// Encrypted: with the key of reading_key.h; without one only plain images are opened.
// Never:     maps the file (a file cut short under us would be a SIGBUS), trusts a length.
//
// One file: of an increment only what it holds itself. A process is read through an ImageChain.
//
//     auto image = ImageReader::open("prog.12.ab….000003.ckpt");
//     if (!image.ok()) … image.error()                     one line, with an exit code
//     for (const Extent& e : image->extents()) …           address order, no overlap
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "base/result.h"
#include "base/units.h"
#include "image/format/image_probe.h"
#include "image/read/image_meta.h"

namespace ckpt {

// Contiguous memory of the saved process and where it is in the file: an entry of the index as it lies there
// (IndexEntry), for of gigabytes there are many. Several may have the same place: memory that repeats. May
// span several mappings, of which none is a vdso or library-owned one; always inside mappings.
struct Extent {
  Addr address;
  ImageOffset offset;  // multiple of 4096; with Codec::kNone the pages themselves, can be mapped
  uint32_t length;     // bytes of memory, whole pages
  uint32_t stored;     // bytes in the file
  uint64_t checksum;   // of the stored bytes and their padding to 4096
  Codec codec;
  uint32_t reserved;

  // This extent repeats the other. In a file that lies, what overlaps need not.
  bool same_place(const Extent& o) const {
    return offset == o.offset && length == o.length && stored == o.stored && codec == o.codec &&
           checksum == o.checksum;
  }
};

static_assert(sizeof(Extent) == sizeof(IndexEntry) &&
              offsetof(Extent, offset) == offsetof(IndexEntry, offset) &&
              offsetof(Extent, length) == offsetof(IndexEntry, length) &&
              offsetof(Extent, stored) == offsetof(IndexEntry, stored) &&
              offsetof(Extent, checksum) == offsetof(IndexEntry, checksum) &&
              offsetof(Extent, codec) == offsetof(IndexEntry, codec));

// What open() reads of a file: everything, or, of a parent, all but the description of the process, or
// nothing but that.
enum class ImageParts { kAll, kMemory, kDescription };

// Bytes of data checked and bytes in all.
using VerifyProgress = std::function<void(uint64_t done, uint64_t total)>;

class ImageReader {
 public:
  static Result<ImageReader> open(const std::string& path, ImageParts parts = ImageParts::kAll);
  // The same of a file that is open already; `name` is for messages.
  static Result<ImageReader> adopt(ScopedFd fd, const std::string& name, ImageParts parts = ImageParts::kAll);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  const ImageBytes& bytes() const { return bytes_; }
  // Offsets of extents are offsets in the file: uncompressed memory can be read and mapped from there.
  bool stored_plainly() const { return !bytes_.sealed(); }
  const ImageBrief& brief() const { return brief_; }
  const ImageMeta& meta() const { return meta_; }
  // The META section as it is in the file.
  std::span<const std::byte> meta_bytes() const { return {meta_bytes_.get(), brief_.meta_bytes}; }
  std::span<const Extent> extents() const { return extents_; }
  // Memory that is as in the parent; in address order, no overlap, none of it in an extent.
  std::span<const AddrRange> inherited() const { return inherited_; }

  // Somebody will open() it with all its parts: what of it is long starts on its way into the page cache.
  void read_ahead() const;

  // The memory of an extent, unpacked, checked against its checksum. out.size() == extent.length.
  Result<void> read_extent(const Extent& extent, std::span<std::byte> out) const;
  // The same for who has read the file itself: `stored` are the extent's bytes with their padding. Returns
  // its memory, which is in `stored` or, when it had to be unpacked, in `out` (of extent.length bytes then).
  Result<const std::byte*> open_extent(const Extent& extent, std::span<const std::byte> stored,
                                       std::span<std::byte> out) const;
  // Every section and every chunk's list, but not META, which open() has checked, and no memory.
  Result<void> verify_sections() const;
  // That, and every byte. With `threads` (1 or 2) readers; progress is called on
  // the calling thread.
  Result<void> verify_data(unsigned threads = 2, const VerifyProgress& progress = {}) const;

 private:
  Result<void> load_meta();
  Result<void> load_index();
  Result<void> load_inherited();
  Result<void> check_in_mappings() const;
  Result<void> check_is_stored(uint64_t at, uint64_t bytes) const;
  Result<std::unique_ptr<std::byte[]>> load_section(SectionKind kind, uint64_t offset, uint64_t content,
                                                    uint64_t checksum, SectionHead* head) const;
  std::vector<const Extent*> extents_by_place() const;  // in the order of the file, then of addresses
  Error damaged(const char* what, uint64_t at) const;

  std::string path_;
  ScopedFd fd_;
  ImageBytes bytes_;
  ImageBrief brief_;
  std::unique_ptr<std::byte[]> meta_bytes_;
  ImageMeta meta_;
  std::unique_ptr<std::byte[]> index_bytes_;
  std::span<const Extent> extents_;  // in index_bytes_
  std::vector<AddrRange> inherited_;
};

// Reads extents, of any images, in the order given, and compares their checksums. Neighbours in the list that
// lie in the same place are read once.
struct ExtentOfImage {
  const ImageReader* image;
  const Extent* extent;
};
Result<void> check_extents(std::vector<ExtentOfImage> extents, unsigned threads,
                           const VerifyProgress& progress);

}  // namespace ckpt
