// Where the restarted program stands among the processes of its terminal: session and process group.
//
// Owner:     restart. Callers: ckpt-restart before the new process; the new process; its supervisor.
#pragma once

#include <cstdint>

#include "image/read/image_meta.h"

namespace ckpt {

enum class JobPlace : uint32_t {
  kRestarters = 0,  // as a part of ckpt-restart's job: what the terminal says goes to both
  kOwnGroup = 1,
  kOwnSession = 2,
};

// A program that led a session and had no terminal open (a daemon, a service) leads one again, and so has no
// controlling terminal. A program that led its process group does so again unless ckpt-restart has a
// controlling terminal: there the shell's job is ckpt-restart's group, and the program would be in the
// background.
JobPlace job_place(const ImageMeta& meta);

// In the new process.
void take_job_place(JobPlace place);

}  // namespace ckpt
