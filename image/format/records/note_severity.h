// What a note in an image (NoteRecord) says of a restart.
//
// Owner:     image/format. Callers: the agent, which writes notes; readers of images.
#pragma once

#include <cstdint>

namespace ckpt {

enum NoteSeverity : uint32_t {
  kInformation = 0,
  kChanged = 1,    // something comes back changed, or is lost
  kNoRestart = 2,  // the image cannot be restarted
};

}  // namespace ckpt
