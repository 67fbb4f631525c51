// A part of the program's memory, and where its copy goes.
//
// Owner:     base. Header only. Callers: the copier, and what reads memory for it (core/kernel).
#pragma once

#include <cstddef>

#include "base/units.h"

namespace ckpt {

struct CopyPiece {
  std::byte* to;
  Addr from;
  size_t bytes;
};

}  // namespace ckpt
