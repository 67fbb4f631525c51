// The first look at an image: header and trailer, each checked against itself and the other. Says
// whether the image is complete; what lies between is checked by the ImageReader.
//
// Owner:     image/format. Callers: the reader, the catalog, and pruning in the victim: raw system calls,
//            no allocation; 8 KiB of stack, of an encrypted image 24 KiB.
#pragma once

#include "base/result.h"
#include "image/format/image_bytes.h"

namespace ckpt {

struct ImageBrief {
  uint32_t version = 0;
  bool encrypted = false;
  uint8_t run_id[16] = {};
  uint64_t sequence = 0;
  ParentImage parent{};
  int64_t realtime_ns = 0;
  uint64_t file_bytes = 0;
  uint64_t image_tag = 0;
  uint64_t meta_offset = 0, meta_bytes = 0, meta_checksum = 0;
  uint64_t index_offset = 0, index_bytes = 0, index_checksum = 0;
  uint64_t inherited_offset = 0, inherited_bytes = 0, inherited_checksum = 0;
  uint64_t section_count = 0, extent_count = 0, memory_bytes = 0;
};

// `path` is for messages. kImageDamaged: not an image, truncated, damaged. kIncompatible: of another
// version, architecture or page size. kIo: cannot be read. kPermission: encrypted, and `key` is not its key;
// not encrypted, and there is one. `bytes`, if given, is for reading the rest: sizes and offsets are those of
// the image itself, without what encrypts it.
Result<ImageBrief> probe_image(int fd, const char* path, const ImageKey* key = nullptr,
                               ImageBytes* bytes = nullptr);

// pread(2) of exactly `bytes`; false with errno in *error, 0 there at the end of the file.
bool read_exactly(int fd, void* to, uint64_t bytes, uint64_t offset, int* error);

}  // namespace ckpt
