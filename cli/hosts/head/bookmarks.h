// What the parts of a job say of their connections to each other, put together: docs/hosts.md, "Bookmarks".
//
// Owner: cli, the head. One thread. Callers: the head's loop. Never: talks to a host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/hosts/job/hosts_manifest.h"

namespace ckpt::cli {

class Bookmarks {
 public:
  // part: its name. line: both addresses, bytes sent and received, bytes not acknowledged; whether the other
  // end has ended its stream; "LOCAL REMOTE N N N B".
  void take(const std::string& part, const std::string& line);

  struct Verdict {
    std::string why_not;   // empty: all is well
    bool passing = false;  // another attempt may find it otherwise
    std::vector<HostsManifest::Connection> connections;
  };
  // last: of the attempts. An end without another is then taken for one that leads out of the job.
  Verdict match(bool last) const;

 private:
  struct End {
    std::string part, local, remote;
    uint64_t sent, received;
    unsigned unsent;
    bool ended;  // the other end sends no more
  };
  bool leads_into_job(const std::string& remote) const;
  std::map<std::string, End> ends_;  // by "LOCAL REMOTE"
};

}  // namespace ckpt::cli
