// A part of a job that lives in namespaces of its own (docs/hosts.md, "Several parts on one host"): a command
// that takes it back, or gives it new connections, works inside of them. Only there its processes have the
// numbers of their images, and there are its /dev/shm and its IPC.
//
// Owner: cli, `ckpt back-part`, before it does anything else. One thread, which need not be of root: the
//        namespaces are the same user's. Callers: `ckpt back-part`.
#pragma once

#include <sys/types.h>

#include <optional>

#include "base/result.h"

namespace ckpt::cli {

// first: the first process of the part, by its number here. Nothing: the caller goes on, and is inside; it
// may be another process than before. A number: it has gone on as a child that was inside and has ended; the
// caller is to end with it.
Result<std::optional<int>> enter_part(pid_t first);

}  // namespace ckpt::cli
