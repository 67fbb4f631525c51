// When the program's job began, by CLOCK_REALTIME in ns: a file that was born later the program, or another
// process of its job, has made.
//
// Owner:     libckpt_rt. Callers: the preload constructor says when the job's first process began, while one
//            thread runs; the agent, also in the stop.
// Never:     fails: 1 where the kernel does not say. In an image: the first beginning after a restart too.
#pragma once

#include <cstdint>

namespace ckpt {

// Of this process.
int64_t process_began_ns();
// What the environment says of the job (job/identity/identity.h).
void set_job_began_ns(int64_t ns);
int64_t job_began_ns();

}  // namespace ckpt
