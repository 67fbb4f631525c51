// Arguments that name the stream of a job's checkpoint (image/format/job_stream.h).
//
// Owner: cli. Callers: commands that read images, before they look at their argument; one thread.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt::cli {

// If `argument` names such a stream ("-", a file, or FILE/PID), it names the same checkpoint in a directory
// of ours from here on. The directory goes when the program ends.
Result<void> unpack_stream(std::string& argument);
// A path in such a directory as the user knows it.
std::string as_given(const std::string& path);

}  // namespace ckpt::cli
