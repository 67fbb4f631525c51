// How a user's command finds the job over several hosts that a process of this host belongs to.
#include <fstream>
#include <iterator>

#include "cli/hosts/hosts.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

std::string hosts_of_process(int pid) {
  std::ifstream in(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  const std::string text = std::string(1, '\0') + std::string((std::istreambuf_iterator<char>(in)), {});
  const std::string name = std::string(1, '\0') + "CKPT_HOSTS=";
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

}  // namespace ckpt::cli
