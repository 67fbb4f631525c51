// What a program that has given up rights may not open itself is opened for it by who asks
// (base/protocol/control_protocol.h).
//
// Owner: cli. Ordinary code, one thread. Callers: Asker.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/ask/target.h"

namespace ckpt::cli {

// Answers the program's line "need WHAT" with what can be opened. The program may be anybody's: it is given
// nothing that is not its own already, or its user's.
Result<void> hand_over(const Target& target, int socket, const std::string& what);

}  // namespace ckpt::cli
