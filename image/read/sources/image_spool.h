// An image from standard input as a file that can be read anywhere: everything is checked before anything is
// believed, and a pipe gives its bytes only once.
//
// Owner:     image/read. Callers: open_standard_input() in image_chain.cc, main() of ckpt-restart;
//            ordinary C++.
// A regular file is read where it is. Anything else is copied to a file without a name in $TMPDIR, else /tmp,
// which is gone with the process and becomes standard input, at its start: a program that executes itself
// again finds the image there.
#pragma once

#include <string>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

inline constexpr const char* kStandardInput = "standard input";

Result<ScopedFd> spool_standard_input();
// Its first bytes, at most `bytes` of 64, less at its end. The next reader of standard input gets these bytes
// again.
Result<std::string> peek_standard_input(size_t bytes);
// Standard input is a file that is read where it is: peeking has taken nothing.
bool standard_input_is_at_start();
// Standard input is /dev/null from here on: the image is not for the program that comes back.
Result<void> leave_standard_input();

}  // namespace ckpt
