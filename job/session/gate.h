// A word at which threads of this process wait while its agent holds it shut.
//
// Owner:     job. Callers: shut(), open(): the agent. is_here(): threads of the program, children and
//            restarted processes among them; raw system calls, no errno.
// Never:     holds a process that only shares our memory, as a child of vfork: its parent could not stand.
#pragma once

#include "base/locks/futex.h"

namespace ckpt::job::gate {

void shut(FutexWord& word);
// Shutting it again, or opening it twice, changes nothing.
void open(FutexWord& word);
// The calling thread is one of the process that shut the word, not of a child that has a copy of it, or that
// shares it. After know_child().
bool is_here();

}  // namespace ckpt::job::gate
