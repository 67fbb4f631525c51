// inotify_add_watch(2) as it is interposed: the name is noted.
//
// Owner:     libckpt_rt/interpose. Callers: threads of the program. The result is the kernel's, no errno.
#pragma once

#include <cstdint>

namespace ckpt::calls {

long inotify_add_watch(int fd, const char* path, uint32_t mask);

}  // namespace ckpt::calls
