// Asks a keeper for its directory of images, and whether it still holds it.
//
// Owner:     image. Callers: the agent, in a program: raw system calls, no allocation, fixed buffers; ordinary programs.
// Never:     waits longer than two seconds for a keeper; talks to one of another user, but for root's.
#pragma once

#include "base/protocol/keeper_protocol.h"
#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

// `path`: of the socket, or of something in the keeper's directory. *directory, if wanted: the keeper's, open.
// kUnavailable: there is no keeper any more. kTimeout: it says nothing. kPermission: it is somebody else's.
Result<KeeperAnswer> ask_keeper(std::string_view path, KeeperOperation operation,
                                ScopedFd* directory = nullptr);

// Its directory.
Result<ScopedFd> open_kept_directory(std::string_view path);

// After a commit in `directory`: is there still a keeper that holds that very directory? What was committed into a
// directory whose keeper has ended is gone as soon as it is closed.
Result<void> check_is_kept(std::string_view path, int directory);

}  // namespace ckpt
