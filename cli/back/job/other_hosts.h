// What the processes of one host that go back have to do with those of the job's other hosts (docs/back.md,
// "A job over hosts"): at each step all hosts wait for each other, and connections between them get again
// what waited in them.
//
// Owner: cli, the process `ckpt back-part` that the host's agent has started. The agent passes each step on
// to the head, and the head's answer back. Callers: what goes back in that process.
// Threads: one at a time; from the commit on that of FarBarriers.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/raii_fd.h"
#include "base/result.h"
#include "base/sockets/job_addresses.h"
#include "image/read/image_meta.h"
#include "restart/channels/channel_builder.h"

namespace ckpt::cli {

// This host's end of a connection to another host, in a process that stands.
struct FarConnection {
  ScopedFd fd;
  std::string name, local, remote;
  std::vector<std::vector<std::byte>> queue;  // what waited in it at the checkpoint
};

class OtherHosts {
 public:
  // socket: to the agent. connections: of the checkpoint, between hosts: [[END, OTHER END, ...], ...].
  OtherHosts(int socket, const nlohmann::json& connections);

  // This host's processes have come to the step. Returns when those of all hosts have; at once for a step
  // that was passed in an earlier attempt. An error (kUnavailable): the others have given up, the agent is
  // gone, or `gives_up`, which is called now and then, has returned true.
  Result<void> come_to(const std::string& step, const std::function<bool()>& gives_up = {});

  bool leads_there(const SocketName& local, const SocketName& remote) const;

  // A host has died, and another one gets its processes. plan: as a restart gets it, with the connections to
  // that host alone.
  Result<void> lose_a_host(const nlohmann::json& plan);
  bool lost_a_host() const { return lost_a_host_; }
  // The name by which the first process of this host is asked to keep callers
  // (base/protocol/unaccepted_protocol.h).
  void set_holder_of_callers(std::string name) { holder_of_callers_ = std::move(name); }
  const std::string& holder_of_callers() const { return holder_of_callers_; }
  // Where the job's hosts are then, for the library; empty: as at the checkpoint.
  std::span<const AddressLine> addresses() const;
  bool leads_to_lost(const SocketName& local, const SocketName& remote) const;
  // In a new attempt.
  void forget() { mine_.clear(); }
  // Its descriptor `fd` in the process of that pidfd.
  Result<void> add(int pidfd, int fd, FarConnection connection);
  // Errors, if a process has connections in its listening socket that it has not accepted.
  static Result<void> check_nobody_waits(int pidfd, int fd, const std::string& name);
  // When the connections of all hosts are empty. Each gets the room afterwards that it had before.
  Result<void> give_back_queues(const std::function<bool()>& gives_up);

 private:
  const int socket_;
  bool lost_a_host_ = false;
  std::string holder_of_callers_;
  std::set<std::pair<std::string, std::string>> connections_;  // each from both ends
  std::set<std::string> passed_;
  std::vector<FarConnection> mine_;
};

}  // namespace ckpt::cli
