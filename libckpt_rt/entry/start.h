// What the library's start gives a process of its own: a directory for its images.
//
// Owner:     libckpt_rt. Callers: the preload constructor; put_child_right() in a child of the program.
// Never:     allocates.
#pragma once

namespace ckpt {

// The job's, or the one that was set for the parent, or one beside the parent's that has the child's number.
void name_directory_of_child();

}  // namespace ckpt
