// Asks a keeper for its directory of images, and whether the keeper still holds that directory.
//
// Owner:     image. Callers: the agent, in a program: raw system calls, no allocation, fixed buffers;
//            ordinary programs.
// Never:     waits longer than two seconds to connect, to ask, and for the answer, each, or tries more than
//            three times where a keeper hangs up; talks to a keeper of another user, but for root's. (Root
//            talks to all.)
#pragma once

#include "base/protocol/keeper_protocol.h"
#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

// `path`: of the socket, or of something in the keeper's directory. *directory, if not nullptr: gets the
// keeper's, open. kUnavailable: there is no keeper any more. kTimeout: it says nothing. kPermission: it is
// another user's.
Result<KeeperAnswer> ask_keeper(std::string_view path, KeeperOperation operation,
                                ScopedFd* directory = nullptr);

// Its directory.
Result<ScopedFd> open_keeper_directory(std::string_view path);

// After a commit in `directory`: does a keeper still hold that very directory? If its keeper has ended, its
// contents are gone as soon as the last descriptor is closed.
Result<void> check_keeper_holds(std::string_view path, int directory);

}  // namespace ckpt
