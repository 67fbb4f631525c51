// One section's head, read and checked: that it fits into the file, belongs to this image, and is
// whole. Used by the ImageReader for META, INDEX and INHERITED, and to walk all sections.
//
// Owner:     image/read. Ordinary C++. Callers: ImageReader, what walks all sections, ckpt-restart's loaders.
#pragma once

#include <vector>

#include "base/result.h"
#include "image/format/image_probe.h"

namespace ckpt {

struct ReadSection {
  SectionHead head;
  std::vector<ExtentEntry> extents;  // of a chunk
};

class SectionReader {
 public:
  SectionReader(const ImageBytes& bytes, const char* path, const ImageBrief& brief)
      : bytes_(bytes), path_(path), brief_(brief) {}
  Result<ReadSection> read_head(uint64_t offset) const;

 private:
  Error damaged(const char* what, uint64_t at) const;
  const ImageBytes& bytes_;
  const char* path_;
  const ImageBrief& brief_;
};

}  // namespace ckpt
