// Whether PMIx can be served here: by libpmix, which is loaded where it is wanted.
//
// Owner:     cluster/srun/pmix. Callers: whoever reads what srun was asked for. Any thread.
// Never:     keeps the library.
#pragma once

#include <string>

namespace ckpt::cluster::srun {

inline constexpr const char* kPmixLibrary = "libpmix.so.2";

// Why not; "": it can.
std::string missing_pmix();

}  // namespace ckpt::cluster::srun
