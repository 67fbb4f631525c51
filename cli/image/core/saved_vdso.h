// The code that the kernel had mapped into the saved process: from the image where it has it, else that
// of this machine when it is the same.
//
// Owner:     cli. Ordinary code. The bytes live as long as the image, or as this process.
// Callers:   `ckpt core`, `ckpt show`.
#pragma once

#include "image/read/image_meta.h"

namespace ckpt::cli {

// Of ProcessRecord::vdso_start. Empty: the process had none, or another kernel's.
Blob saved_vdso(const ImageMeta& meta);

}  // namespace ckpt::cli
