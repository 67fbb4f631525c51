// Which part of a job goes to which host, and which ports each part gets on a host that several parts share.
//
// Owner: cli/hosts. Callers: the head at a restart, before any part is started; host_tables. Ordinary code.
// Never: asks a host: callers bring the ports that the parts have open.
#pragma once

#include <string>
#include <vector>

#include "cli/text/json_lines.h"

namespace ckpt::cli {

// The host of each part: in order, each host gets as many as any other, or one less. Of more hosts than parts
// the last get none.
std::vector<std::string> place_parts(size_t parts, const std::vector<std::string>& hosts);

// For each part: is it on the same machine as another part, by "address" in the table?
std::vector<bool> who_shares(const Json& table);

// Ports of all internet sockets in a part's images, as they were on its machine, sorted, each once.
std::vector<int> ports_of_part(const std::string& part);

// come: parts that come to their hosts now, while the processes of the others stay where they are. For each
// part: is it on a machine that it shares with one of them, or is it one of them and shares its machine?
std::vector<bool> who_gets_ports(const Json& table, const std::vector<int>& come);

// table: of the hosts, with their new addresses. was: the table of the checkpoint. ports: of the parts in the
// order of the table; of those that get none they are not looked at. A part that stays keeps the ports that
// it has. A port of a part that comes is exchanged, where another one there has it, for one that no part
// there has. The ports that the kernel chooses from are shared out among the parts of a machine. Writes
// "ports" and "slice" of each that gets them; removes those of a part that comes to a machine alone; leaves
// all others.
void share_ports(Json& table, const Json& was, const std::vector<std::vector<int>>& ports,
                 const std::vector<int>& come);

// The table as base/sockets/job_addresses.h has it, of the host `own`: lines of text.
std::vector<std::string> address_lines(const Json& table, const std::string& own);

}  // namespace ckpt::cli
