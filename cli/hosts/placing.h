// Which part of a job goes to which host, and how several parts get on with one: whose ports are whose.
//
// Owner: cli/hosts. Callers: the head at a restart, before any part is started; host_tables. Ordinary code.
// Never: asks a host: what the parts have open is told to it.
#pragma once

#include <string>
#include <vector>

#include "cli/hosts/hosts.h"

namespace ckpt::cli {

// Of each part its host: in order, as many to each host as to another, or one less. Hosts are left over if there are more
// than parts.
std::vector<std::string> place_parts(size_t parts, const std::vector<std::string>& hosts);

// Parts of the job that are on the same machine as another, by "address" in the table.
std::vector<bool> who_shares(const Json& table);

// Ports of sockets in a part's images, as they were on the machine, in order, each once.
std::vector<int> ports_of_part(const std::string& part);

// table: of the hosts, with their new addresses. was: the one of the checkpoint. ports: of the parts in the order of the
// table. A port that an earlier part on the same host has is exchanged for one that nobody has; ports that the kernel chooses
// are shared out. Writes "ports" and "slice" of each host, or removes them.
void share_ports(Json& table, const Json& was, const std::vector<std::vector<int>>& ports);

// The table as base/job_addresses.h has it, of the host `own`: lines of text.
std::vector<std::string> address_lines(const Json& table, const std::string& own);

}  // namespace ckpt::cli
