// Can the image run on this machine: protocol, the library's entry, processor, vdso, addresses?
//
// Owner:     restart. Callers: ckpt-restart, before anything is touched.
#pragma once

#include "base/result.h"
#include "image/read/image_chain.h"
#include "restart/plan/vdso/vdso.h"

namespace ckpt {

Result<void> check_machine(const ImageChain& image, const Vdso& ours);

}  // namespace ckpt
