// The restart of a job: several processes at once.
//
// Owner:     restart. Callers: main(), instead of the restart of one process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/read/sources/job_spool.h"
#include "restart/options.h"

namespace ckpt {

// The directory of the job that a user means by a job's directory, or by a directory whose newest image is a
// job; nullopt: none of a job. notes: for each job's checkpoint there that is unusable, and may be newer than
// what is meant.
Result<std::optional<std::string>> find_job(const std::string& argument, std::vector<std::string>& notes);

// The exit code of ckpt-restart; ends as the topmost process ends. spool: what the directory is of, or
// nullptr; it goes when all is loaded. notes_of_choice: of find_job().
int restart_job(const RestartOptions& options, const std::string& directory, char** argv, JobSpool* spool,
                const std::vector<std::string>& notes_of_choice);

}  // namespace ckpt
