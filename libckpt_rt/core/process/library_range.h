// Where the library's own writable data lies in the program (.data, .bss, and what relocation wrote).
//
// Owner: libckpt_rt. Callers: any thread. Source: the linker's symbols.
#pragma once

#include "base/units.h"

namespace ckpt {

AddrRange library_data_range();

}  // namespace ckpt
