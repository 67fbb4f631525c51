// Can the image run on this machine: protocol, processor, vdso?
//
// Owner:     restart. Callers: ckpt-restart, before anything is touched.
#pragma once

#include "base/result.h"
#include "restart/vdso.h"
#include "writer/image_reader.h"

namespace ckpt {

Result<void> check_machine(const ImageReader& image, const Vdso& ours);

}  // namespace ckpt
