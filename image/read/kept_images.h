// Images in a keeper's memory, for whoever reads images by path.
//
// "keeper:NAME", "keeper:NAME/FILE" and the same by the socket's path (base/protocol/keeper_protocol.h) become paths of this
// process, /proc/self/fd/N/FILE, which lead into the keeper's directory. So all that reads images reads these too.
//
// Owner:     image (reader half). Callers: main() of ckpt and ckpt-restart, and who learns such a path from a program;
//            one thread. What is opened stays open until the process ends.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace ckpt {

// Anything else is left as it is. inherited: programs that are executed have it too.
Result<std::string> reach_kept_images(const std::string& argument, bool inherited = false);

// For messages: the same the other way round, wherever in `text` such a path is.
std::string with_keepers_named(std::string_view text);

}  // namespace ckpt
