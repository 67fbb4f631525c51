#include "cli/hosts/job/ask_job.h"

#include <fstream>
#include <iterator>

#include "cli/hosts/job/users.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

std::string hosts_of_process(int pid) { return variable_of_process(pid, "CKPT_HOSTS"); }

std::string variable_of_process(int pid, const std::string& variable) {
  std::ifstream in(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  const std::string text = std::string(1, '\0') + std::string((std::istreambuf_iterator<char>(in)), {});
  const std::string name = std::string(1, '\0') + variable + "=";
  const size_t at = text.find(name);
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size();
  return text.substr(begin, text.find('\0', begin) - begin);
}

JobAnswers ask_job_over_hosts(int pid, const Json& question, Json& answer) {
  if (ask_over_hosts(head_socket_name(pid), question, answer)) return JobAnswers::kAnswered;
  const std::string value = hosts_of_process(pid);
  const size_t colon = value.find(':');
  if (colon == std::string::npos) return JobAnswers::kNoSuchJob;
  return ask_over_hosts(agent_socket_name(value.substr(0, colon), value.substr(colon + 1)), question, answer)
             ? JobAnswers::kAnswered
             : JobAnswers::kNobody;
}

Result<std::optional<Json>> answer_of_job_over_hosts(int pid, const std::string& name, const Json& question) {
  Json answer;
  switch (ask_job_over_hosts(pid, question, answer)) {
    case JobAnswers::kAnswered:
      break;
    case JobAnswers::kNoSuchJob:
      return std::optional<Json>();
    case JobAnswers::kNobody:
      return failure(ExitCode::kUnavailable, name,
                     "belongs to a job over several hosts, of which nobody answers here",
                     "look for ckpt run --hosts, and what it says");
  }
  if (answer.contains("error"))
    return make_error(static_cast<ExitCode>(answer.value("code", 70)), 0, "{}",
                      printable(answer.value("error", "")));
  answer.erase("say");
  answer.erase("number");
  return std::optional<Json>(std::move(answer));
}

}  // namespace ckpt::cli
