// One line for a failed file operation: which image, what happened, what to do about it.
//
// Owner:     image/format. Callers: both halves; in the victim too: fixed buffers, no allocation.
#pragma once

#include "base/result.h"

namespace ckpt {

inline constexpr size_t kShownPath = 140;  // characters of a path in a message

// A path as it is shown: a long one loses its middle, so that the message keeps its remedy.
struct ShownPath {
  char text[kShownPath + 1];
};
ShownPath shown_path(const char* path);

// `doing`: "write", "create", "rename" …; error: errno or -errno.
Error image_io_error(const char* doing, const char* path, long error);

}  // namespace ckpt
