// A job over several hosts: what a process's environment says of its host is that of this one.
//
// Owner:     job. Callers: the preload constructor, while one thread runs.
// Never:     calls setenv(3) or its kin; allocates but one mapping, where something is to be changed.
//
// Launchers of parallel programs hand their own environment to processes on other hosts (MPICH's hydra does).
// These would take themselves for processes of the launcher's host: with its image directory, and its first
// process. The topmost process of the job above them has what is right here.
#pragma once

namespace ckpt::job {

void be_of_this_host();

}  // namespace ckpt::job
