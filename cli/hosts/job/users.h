// Sockets by which users ask the agent or head on their host: abstract names, which have no file. Only the
// same user and root are answered.
//
// Owner: cli. Ordinary code, one thread. Callers: the head and the agents.
#pragma once

#include <string>

#include "base/raii_fd.h"
#include "base/result.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

// The abstract names at which the agent and the head of a job listen to users on their host.
std::string agent_socket_name(const std::string& job, const std::string& host);
std::string head_socket_name(int pid);
Result<ScopedFd> listen_to_users(const std::string& name);
int who_listens_to_users(const std::string& name);  // the process; 0: none
// The other end of an accepted connection is of our user, or root.
bool is_own_user(int connection);
// False: no process of this user listens there, or it does not answer. answer: a JSON object.
bool ask_over_hosts(const std::string& name, const Json& question, Json& answer);

}  // namespace ckpt::cli
