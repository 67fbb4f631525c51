// Images in a keeper's memory, for code that reads images by path.
//
// "keeper:NAME", "keeper:NAME/FILE" and the same by the socket's path (base/protocol/keeper_protocol.h)
// become paths of this process, /proc/self/fd/N/FILE, which lead into the keeper's directory. So all that
// reads images reads these too.
//
// Owner:     image (reader half). Callers: main() of ckpt and ckpt-restart, and commands that get such a path
//            from a program; one thread. The directory stays open until the process ends.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace ckpt {

// Any other argument is left as it is. inherited: programs that this process executes have the descriptor
// too. `inherited` counts in the first call for a keeper.
Result<std::string> reach_keeper_images(const std::string& argument, bool inherited = false);

// For messages: names keepers again wherever `text` has such a path.
std::string with_keepers_named(std::string_view text);

}  // namespace ckpt
