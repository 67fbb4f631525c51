// Names of images: "<comm>.<pid>.<run id, 8 hex>.<sequence, at least 6 digits>.ckpt", with ".tmp"
// appended while the image is being written. Parsed from the right: comm may contain dots.
//
// Owner:     image/format. Callers: both halves; in the victim too: no allocation.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt {

struct ImageName {
  char text[96] = {};  // NUL-terminated
};

// Characters of comm that could surprise a shell or leave the directory become '_'.
ImageName compose_image_name(std::string_view comm, int pid, const uint8_t run_id[16], uint64_t sequence);

struct ParsedImageName {
  std::string_view comm;  // inside the parsed text
  int pid;
  uint32_t run_prefix;  // the first four bytes of the run id, in the order of the name's digits
  uint64_t sequence;
  bool temporary;
};
// False: not the name of an image.
bool parse_image_name(std::string_view name, ParsedImageName* parsed);

uint32_t run_prefix_of(const uint8_t run_id[16]);

}  // namespace ckpt
