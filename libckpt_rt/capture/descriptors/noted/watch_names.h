// By which names the program put watches on files (inotify(7), fanotify(7)), and bound Unix sockets to
// relative paths: the kernel tells inodes, not where they are.
//
// Owner:     libckpt_rt/interpose; in the library's data, so that an image and a forked child have it.
//            Executing another program begins anew.
// Callers:   note*: threads of the program, behind inotify_add_watch(2), fanotify_mark(2) and bind(2), at any
//            moment, also in handlers. next: the agent.
// Never:     allocates, locks, touches errno.
#pragma once

#include <cstdint>

namespace ckpt::watch_names {

// inotify_add_watch(2) has succeeded with these. A name that finds no room is not noted.
void note(const char* path, uint32_t mask);

// The same of fanotify_mark(2), whose path may be relative to a directory, or nullptr: that itself.
void note_at(int directory, const char* path, bool follows);

// bind(2) has succeeded with this path. The kernel will tell the lower half of its inode's number, so that is
// noted.
void note_socket(const char* path);

// The next absolute name that was noted of a file with this inode number, from place `at` on, which is moved
// behind it; begin with 0. nullptr: no more. The name may lead elsewhere by now.
const char* next(uint32_t& at, uint64_t inode);
// The same, of any file.
const char* next_of_all(uint32_t& at);

}  // namespace ckpt::watch_names
