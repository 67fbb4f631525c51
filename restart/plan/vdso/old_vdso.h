// Restarting under another kernel: the saved vdso's code stays at its place, and each function in it
// becomes a jump to the present kernel's function of that name.
//
// Owner:     restart. Callers: the plan (is it possible?), restart/plan/memory/restorer_range.cc (make it).
// A program has the addresses of the vdso's functions in its memory (libc looked them up at start), so
// they must lead somewhere. The old code itself cannot run on: it reads the old kernel's vvar pages,
// whose layout only that kernel knows. Hence a thread that stood inside it cannot be brought back.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "image/read/image_meta.h"
#include "restart/plan/vdso/vdso.h"

namespace ckpt {

// The vdso's code pages that the image brings, empty if it has none.
std::span<const std::byte> saved_vdso_code(const ImageMeta& meta);

// The vdso here is not the image's.
bool is_other_vdso(const ImageMeta& meta, const Vdso& ours);

// Can the saved program use our vdso? Errors: kIncompatible, naming what is in the way.
Result<void> check_other_vdso(const ImageMeta& meta, const Vdso& ours);

// The saved code pages with every function replaced. our_code: where our vdso's code will be.
std::vector<std::byte> redirect_vdso(std::span<const std::byte> saved, const Vdso& ours, Addr our_code);

}  // namespace ckpt
