// inotify_add_watch(2), fanotify_init(2) and fanotify_mark(2) as they are interposed: the name is noted, and
// what the kernel does not tell of a group.
//
// Owner:     libckpt_rt/interpose. Callers: threads of the program. The result is the kernel's, no errno.
#pragma once

#include <cstdint>

namespace ckpt::calls {

long inotify_add_watch(int fd, const char* path, uint32_t mask);
long fanotify_init(unsigned flags, unsigned event_flags);
long fanotify_mark(int group, unsigned flags, uint64_t mask, int directory, const char* path);

// One of them by its number, as syscall(2) has it.
long watch_files(long nr, long a, long b, long c, long d, long e);

}  // namespace ckpt::calls
