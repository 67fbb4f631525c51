// An image with the images that it is an increment to: what restart, ckpt show and everybody else who
// wants a process, and not a file, reads. A full image is a chain of one.
//
// Owner:     image/read. Callers: ckpt-restart, ckpt; ordinary C++.
// Never:     takes another file for a parent that is missing or has changed: that is an error which
//            names the file.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "image/read/image_reader.h"

namespace ckpt {

// Contiguous memory of the saved process and the extent, or part of one, that holds it: the newest in
// the chain that does.
struct MemoryPiece {
  Addr address;
  uint32_t length;  // bytes, whole pages
  uint32_t into;    // bytes into the extent's memory
  uint32_t image;   // of the chain
  uint32_t extent;  // of that image
};

class ImageChain {
 public:
  // The image and all of its parents, which are looked for beside it: by the name they had, then by
  // their contents. "-" is a full image from standard input (image_spool.h).
  static Result<ImageChain> open(const std::string& path);

  // 0 is the image that was asked for; the last is a full one.
  size_t size() const { return images_.size(); }
  const ImageReader& image(size_t i) const { return images_[i]; }
  const ImageReader& newest() const { return images_[0]; }
  const ImageMeta& meta() const { return newest().meta(); }
  const ImageBrief& brief() const { return newest().brief(); }
  const std::string& path() const { return newest().path(); }

  // All memory of the process that is not zero or a file's, in address order, without overlap.
  std::span<const MemoryPiece> pieces() const { return pieces_; }
  const Extent& extent_of(const MemoryPiece& piece) const {
    return images_[piece.image].extents()[piece.extent];
  }
  uint64_t memory_bytes() const { return memory_bytes_; }
  uint64_t file_bytes() const;  // of all images

  // Every byte of every image.
  Result<void> verify_all(unsigned threads = 2, const VerifyProgress& progress = {}) const;
  // Every byte that this image is restored from: all of a full image; of a chain the memory that no
  // later increment replaces.
  Result<void> verify_used(unsigned threads = 2, const VerifyProgress& progress = {}) const;

 private:
  Result<ImageReader> find_parent(const ImageReader& child) const;
  void merge();

  std::vector<ImageReader> images_;
  std::vector<MemoryPiece> pieces_;
  uint64_t memory_bytes_ = 0;
};

// The image that comes from standard input (image_spool.h); it cannot be an increment.
Result<ImageReader> open_standard_input(ImageParts parts);

}  // namespace ckpt
