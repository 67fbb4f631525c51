// Which part of a job goes to which host, and which ports each part gets on a host that several parts share.
//
// Owner: cli/hosts. Callers: the head at a restart, before any part is started; host_tables. Ordinary code.
// Never: asks a host: callers bring the ports that the parts have open.
#pragma once

#include <string>
#include <vector>

#include "cli/text/json_lines.h"

namespace ckpt::cli {

// The host of each part: in order, each host gets as many as any other, or one less. Of more hosts than parts the last
// get none.
std::vector<std::string> place_parts(size_t parts, const std::vector<std::string>& hosts);

// For each part: is it on the same machine as another part, by "address" in the table?
std::vector<bool> who_shares(const Json& table);

// Ports of all internet sockets in a part's images, as they were on its machine, sorted, each once.
std::vector<int> ports_of_part(const std::string& part);

// table: of the hosts, with their new addresses. was: the table of the checkpoint. ports: of the parts in the order of the
// table. A port that an earlier part on the same host has is exchanged for one that no part there has; the ports that the
// kernel chooses from are shared out. Writes "ports" and "slice" of each host, or removes them.
void share_ports(Json& table, const Json& was, const std::vector<std::vector<int>>& ports);

// The table as base/sockets/job_addresses.h has it, of the host `own`: lines of text.
std::vector<std::string> address_lines(const Json& table, const std::string& own);

}  // namespace ckpt::cli
