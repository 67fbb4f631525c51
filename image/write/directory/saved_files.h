// Counting the names that saved files give to a file; removing what is kept beside images that are gone.
//
// Owner:     image, writing half. Callers: the agent; ordinary programs.
// Never:     follows a link; removes anything that is not in such a directory of ours.
#pragma once

#include <cstdint>

namespace ckpt {

// How many names of that file are in such directories: beside the images in dir_fd, and in the jobs there.
// in_job: dir_fd is a job's directory, and the images lie where that does.
uint32_t count_saved_links(int dir_fd, bool in_job, uint64_t device, uint64_t inode);

// Of one image. image: its name or path.
void remove_saved_files(int dir_fd, const char* image);

// Of images that are not there, neither whole nor unfinished, and that no program is about to write: it would
// have the directory locked.
void remove_orphaned_saved_files(int dir_fd);

}  // namespace ckpt
