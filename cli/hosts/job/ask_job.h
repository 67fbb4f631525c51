// How a user's command finds the job over several hosts that a process of this host belongs to.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt now`, `back`, `migrate`; the agent.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

// "JOB:HOST", as the process was started with it (CKPT_HOSTS); "": it belongs to no job over several hosts.
std::string hosts_of_process(int pid);
// As the process was started with it; "": without it, or nobody may look.
std::string variable_of_process(int pid, const std::string& variable);
// The head or the agent of the job that the process belongs to; pid: of any of its processes here, or of the
// head itself.
enum class JobAnswers { kNoSuchJob, kNobody, kAnswered };
JobAnswers ask_job_over_hosts(int pid, const Json& question, Json& answer);
// For a command that is meant for such jobs: the answer without what is for the link alone; nothing:
// kNoSuchJob. A failure of the head is an error, and so is a job in which nobody answers. name: of the
// process, as the user gave it.
Result<std::optional<Json>> answer_of_job_over_hosts(int pid, const std::string& name, const Json& question);

}  // namespace ckpt::cli
