// Messages of plug-ins on their way between hosts, as the agent and the head say them.
//
// Owner: cli. Callers: agent.cc, head.cc.
#pragma once

#include <string>
#include <vector>

#include "cli/ask/asker.h"
#include "cli/hosts/crew/crew.h"
#include "cluster/protocol/post_office.h"

namespace ckpt::cli {

// Agent, for the head: what the coordinator's lines say ("post HOST PID HEX", "posts 1").
Json message_of_posts(const Answer& lines, uint64_t id);
// Head: what an agent says.
std::vector<cluster::PostOffice::Post> posts_in(const Json& said);
std::vector<std::string> names_of(Crew& crew);
Json message_of_delivery(const cluster::PostOffice::Delivery& delivery, uint64_t id);
// Agent: what the coordinator gets of it, behind kStepContinue (base/protocol/control_protocol.h).
std::string mail_of(const Json& said);

}  // namespace ckpt::cli
