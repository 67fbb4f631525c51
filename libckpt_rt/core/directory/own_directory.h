// The directory that images of this process go to: the one that was set, or below it the one of a later user.
//
// A program that gives up root's rights may not write into root's directory any more. Just before, the
// library makes `user-UID` in it for the user that the program becomes. Where that user may not even pass
// through the directories above, the asker hands `user-UID` over, open (base/protocol/control_protocol.h).
//
//   CKPT_DIR            root's, 0700, and 0711 as soon as it has one of a later user
//     user-65534        that user's, 0700
//
// Owner:     libckpt_rt.
// Callers:   choose(): the preload constructor. choose_in_child(): put_child_right().
//            open_own_directory(), may_open(), hand_over(): the agent. prepare_for_user(): a thread of the
//            program.
// Never:     allocates.
#pragma once

#include <cstdint>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

// Opens it; name() is its name from then on.
Result<ScopedFd> open_own_directory();

namespace own_directory {

// Without what was handed over.
bool may_open();
using Name = char[1200];

// Absolute path of the one that images go to now.
const char* name();
void copy_name(Name& to);
// From what the user has set, the job, and the working directory of now.
void choose();
// The job's, or the one that was set for the parent, or one beside the parent's that has the child's number:
// whatever directory the child or its parent has changed to since.
void choose_in_child();
// The one that is set.
const char* set_name();
// For the checkpoint that follows; not valid: none.
void hand_over(ScopedFd directory);
// Restart, forked child, going back: the number in memory is of a table that is not there.
void forget();
// The calling thread is about to become that user. Does nothing where CKPT_DIR is not set.
void prepare_for_user(uint32_t user);

}  // namespace own_directory

}  // namespace ckpt
