// One host's part of a job over several hosts comes back (docs/hosts.md): which addresses are others now,
// which connections lead to other hosts, and the agent of this host, which knows when all are ready.
//
// Owner:     restart. Callers: ckpt-restart before anything is made, then the planter, which has inherited
// it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/result.h"
#include "restart/channels/channel_builder.h"

namespace ckpt {

struct HostsPlan {
  int agent_fd = -1;
  std::map<std::string, std::string> addresses;               // as it was, as it is
  std::set<std::pair<std::string, std::string>> connections;  // ends as end_text() gives them, both ways
  std::string token;                                          // of this restart: whoever connects shows it

  // Ends the restart for all: an agent that is gone.
  Result<void> say_listening_and_wait() const;
  // All processes of this host stand ready, until those of all hosts do.
  Result<void> say_ready_and_wait() const;
  void say_running(int pid) const;
  void translate(SocketName& name) const;

 private:
  Result<void> say_and_wait(const char* what) const;
};

// nullptr: the job is one of this host alone.
const HostsPlan* hosts_plan();
// Reads it from the agent.
Result<void> receive_hosts_plan(int agent_fd);

// An address as 32 hexadecimal digits (IPv4 as ::ffff:a.b.c.d), a dot, and the port.
std::string end_text(const SocketName& name);

}  // namespace ckpt
