// Processes that were killed, and have not ended yet: `kill -9` returns before its target has given up its
// locks, its ports and its files.
//
// Owner:     restart. Callers: ckpt-restart, before it looks whether ids, ports and files can be had.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt {

// Was it killed, or does it exit: will it run no instruction of its own any more? False as well where it has
// ended (a zombie holds nothing), is no process (but another thread of one), or may not be looked at.
bool is_dying(int pid);

// Returns when no process that has one of these ids, or is in a group that has, is dying any more; or after
// `patience_ns` in all.
void await_dying(const std::vector<int>& ids, int64_t patience_ns = 10'000'000'000);

}  // namespace ckpt
