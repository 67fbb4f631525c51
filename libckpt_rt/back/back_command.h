// ckpt_rt_back(): the program asks for itself. `ckpt back` reads the image, as for every other asker; here it
// is only started.
//
//   thread ──vfork, no exit signal──► nanny ──vfork, exec──► sh ──► ckpt back PID IMAGE
//     | waits for the nanny <-----------+ ends after exec       | its words and its exit code go into a pipe
//     | reads the pipe <----------------------------------------+ until it ends: nothing was changed then
// The program sees no child: the nanny is gone before the command looks for children, and the shell then has
// another parent. When the program goes back, this thread goes back too, and the pipe is closed: it was not
// open at the checkpoint.
//
// Owner: libckpt_rt. Callers: a thread of the program, outside of handlers.
#pragma once

#include "base/result.h"

namespace ckpt {

// image: a path, or nullptr for the newest. Returns only when nothing was changed.
Error go_back_by_command(const char* image);

}  // namespace ckpt
