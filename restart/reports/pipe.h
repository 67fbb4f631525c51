// A pipe between ckpt-restart and a process that it makes.
//
// Owner: whoever asks. Callers: the main thread of ckpt-restart.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/raii_fd.h"

namespace ckpt {

// Its end to read from, its end to write to. Neither is valid where there is no pipe: errno says why.
inline std::pair<ScopedFd, ScopedFd> make_pipe() {
  int ends[2] = {-1, -1};
  (void)!pipe2(ends, O_CLOEXEC);
  return {ScopedFd(ends[0]), ScopedFd(ends[1])};
}

}  // namespace ckpt
