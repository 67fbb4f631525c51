// The kernel's vdso and vvar pages: where ckpt-restart has them, and whether they are those of the image.
//
// Owner:     restart. Callers: the plan (identity), restart/plan/memory/restorer_range.cc (pieces to move);
//            one thread.
// The vdso reads the vvar pages relative to itself, so all of them move together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace ckpt {

struct VdsoPiece {
  AddrRange range;
  bool code;  // [vdso]; else [vvar] or [vvar_vclock]
};

struct Vdso {
  std::vector<VdsoPiece> pieces;  // in address order
  AddrRange code;                 // of [vdso]
  uint64_t hash = 0;              // XXH3 of the code pages

  bool present() const { return !code.empty(); }
  AddrRange whole() const {
    return present() ? AddrRange{pieces.front().range.start, pieces.back().range.end} : AddrRange{};
  }
};

// Of this process. Without a vdso (vdso=0 on the kernel's command line) present() is false.
Result<Vdso> find_vdso();

struct VdsoSymbol {
  std::string name;
  uint64_t offset;  // bytes from the start of the code pages
  uint64_t size;
};

// The functions that a vdso exports. `code` may be anything: what does not parse has none.
std::vector<VdsoSymbol> vdso_symbols(std::span<const std::byte> code);

}  // namespace ckpt
