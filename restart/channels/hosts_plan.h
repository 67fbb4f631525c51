// One host's part of a job over several hosts comes back (docs/hosts.md): which addresses are others now,
// which connections lead to other hosts, and the agent of this host, which knows when all are ready.
//
// Owner:     restart. Callers: ckpt-restart before anything is made, then the planter, which has inherited
//            it; ckpt back-part where a host is another one now.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/sockets/job_addresses.h"
#include "restart/channels/channel_builder.h"

namespace ckpt {

struct HostsPlan {
  int agent_fd = -1;
  std::vector<AddressLine> was,
      is;  // where the parts of the job were, where they are; empty: nobody has moved
  // Between hosts, both ways: ends as end_text() gives them, and the address of the part at the second, as
  // the job knows it (16 bytes, or empty).
  std::map<std::pair<std::string, std::string>, std::string> connections;
  bool shared = false;  // several parts come to this host, each with namespaces of its own
  std::string token;    // of this restart: a connecting end sends it first
  // In place of the agent: returns when the sockets of all hosts listen.
  std::function<Result<void>()> all_listen;

  // Tells the agent that all sockets listen, and waits until those of all hosts do. Error: the agent is gone,
  // which ends the restart for all.
  Result<void> say_listening_and_wait() const;
  // Tells the agent that all processes of this host stand ready, and waits until those of all hosts do.
  Result<void> say_ready_and_wait() const;
  void say_running(int pid) const;
  // The kernel shall choose this socket's port from the slice of this part.
  void limit_to_slice(int fd) const;
  // Turns an address of this host, as it was, into that of now.
  void translate_own(SocketName& name) const;
  // The same for an address of another host. of: the part that has it, as in `connections`.
  void translate_other(SocketName& name, const std::string& of) const;

 private:
  Result<void> say_and_wait(const char* what) const;
  void translate(SocketName& name, const uint8_t* of) const;
};

// nullptr: the job is one of this host alone.
const HostsPlan* hosts_plan();
// Other parts of the job come to this host as well.
bool shares_host();
// The host whose part of a job over several hosts is in this directory; empty: it is all of its job.
std::string host_of_part(const std::string& directory);
// Reads the plan from the agent.
Result<void> receive_hosts_plan(int agent_fd);
// text: JSON, as the head makes it.
Result<HostsPlan> parse_hosts_plan(const std::string& text);
void set_hosts_plan(HostsPlan plan);

// An address as 32 hexadecimal digits (IPv4 as ::ffff:a.b.c.d), a dot, and the port.
std::string end_text(const SocketName& name);

}  // namespace ckpt
