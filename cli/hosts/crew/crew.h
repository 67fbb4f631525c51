// The head's connections to all host agents: starts the agents, lets them in, sends and receives messages.
//
// Owner: cli, the head. One thread. Callers: the head, the restart, and simulated agents.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/crew/admission.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

// By which the user wants the job to end. Such signals are blocked (block_signals()), and read by
// watch_job(); whoever waits for hosts before that looks for them here. 0: none has come.
int signal_to_end();

struct CrewHost {
  std::string name;     // in the job
  std::string where;    // the host on which the agent runs
  std::string address;  // as its own connection has it
  Json here;            // what it said first
  pid_t launch = -1;    // the command that started it
  cluster::SealedLink link;
  int64_t clock_offset_ns = 0, round_trip_ns = 0;
  int port = 0;             // where ckpt-on finds it
  std::vector<Json> early;  // said before anybody listened to it
  bool gone = false;        // it did not come, or its connection has broken
  bool no_room = false;     // for a part that was to be computed there
};

// The adapters that the host has named (cli/hosts/job/adapters.h).
std::vector<std::string> adapters_of(const CrewHost& host);

class Crew {
 public:
  // names: of the hosts in the job; where: on which hosts. silence_ms: of a host, before it is gone. fenced:
  // a host that is cut off gives up in half that time, for its processes are about to run elsewhere.
  Crew(std::vector<std::string> names, std::vector<std::string> where, std::string launch, int silence_ms,
       bool fenced = false);
  ~Crew();
  Crew(const Crew&) = delete;

  // Starts the agents that are not connected. Returns when all are; the error names one that is not, or is a
  // signal's (exit code 128 and its number).
  Result<void> assemble();
  // The host is gone: its part of the job is another one's. Before the next assemble().
  void replace(int host, const std::string& where);
  Result<void> measure_clocks();
  // Versions, libraries. An error names the host and what differs.
  Result<void> check_alike() const { return check_alike(hosts_[0]); }
  Result<void> check_alike(const CrewHost& first) const;

  std::vector<CrewHost>& hosts() { return hosts_; }
  bool tell(int host, const Json& what);
  void tell_all(const Json& what);
  // Waits for one message of the kind `say` from each agent. "cannot" and "ended" are errors, and so is a
  // signal, as above. Other messages before it are dropped; questions of users ("ask") and later messages go
  // to CrewHost::early.
  Result<std::vector<Json>> expect_all(const std::string& say, int64_t patience_ns);
  // The messages that have come from one host. False: its connection is broken.
  bool hear(int host, std::vector<Json>& out);
  // Hosts that are gone. Each host that seems to be there is asked; it answers, or its connection breaks. The
  // head may hear of a host's death later than of its consequences on other hosts. Other messages go to
  // CrewHost::early.
  std::vector<int> find_gone();
  // Of each host's parts in keepers' memory those that are to stay when it ends. Without this word all do.
  void leave_parts(std::vector<std::vector<std::string>> parts) { stay_ = std::move(parts); }
  // When it ends. at_once: the job goes on from a checkpoint. So its processes are not asked to end
  // (SIGTERM), for what they did then would be done beside the job that goes on; they are killed.
  void end_at_once(bool at_once) { at_once_ = at_once; }
  void dismiss();  // agents end what is on their hosts; waits for them, at most 10 s

 private:
  Result<void> start(CrewHost& host, const Json& task);
  void take_in(Admission::Guest guest);

  std::vector<CrewHost> hosts_;
  std::vector<std::vector<std::string>> stay_;
  bool at_once_ = false;
  std::vector<pid_t> left_;  // commands that started agents of hosts that are gone
  std::string launch_;
  const int silence_ms_;
  const bool fenced_;
};

}  // namespace ckpt::cli
