// Who else has a pseudo-terminal's master: one that the job was started with, as of a terminal emulator that
// hands its own on to the shell. What it would read must not be touched.
//
// Owner:     libckpt_rt, descriptors. Callers: the agent, while the program runs: directories are searched.
// Never:     sees a process whose descriptors this user may not look at, or that is not above the job.
#pragma once

#include <cstdint>

namespace ckpt::terminal_holders {

// N of /dev/pts/N of a master; -1: it is none, or this kernel does not say.
int64_t number_of_master(int pid, int tid, int fd);
// A process above the job's first one that has the master of that number; 0: none.
int above_job(int first, int64_t number);

}  // namespace ckpt::terminal_holders
