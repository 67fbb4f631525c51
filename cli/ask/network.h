// A socket in the network namespace of the program that is asked: abstract Unix addresses belong to
// one namespace, and the program must find ours from inside its own.
//
// Owner: cli. Ordinary code, one thread; forks a child where another namespace must be entered. Callers:
// Asker.
#pragma once

#include "base/result.h"
#include "cli/ask/target.h"

namespace ckpt::cli {

// A Unix stream socket, not bound, close-on-exec. kPermission when the namespace may not be entered.
Result<int> make_socket_near(const Target& target);

}  // namespace ckpt::cli
