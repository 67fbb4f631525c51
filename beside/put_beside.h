// Puts the library, and the libc and dynamic linker that it needs, beside a static program, before the
// program's first instruction.
//
// Owner:     beside. One thread, the tracer.
#pragma once

#include <string>

#include "base/result.h"
#include "beside/traced_process.h"

namespace ckpt::beside {

// The first argument of this command where the dynamic linker runs it in the program's process:
// start_library().
inline constexpr const char* kStartLibrary = "--start-library";

// own: the path of this command. The program's environment must say what is preloaded (LD_PRELOAD). Behind
// this the process has the library, and stands at the program's first instruction as it did.
// Returns the signal of the checkpoint in other programs, which a parent may have left blocked.
Result<int> put_library_beside(TracedProcess& process, const std::string& own);

}  // namespace ckpt::beside
