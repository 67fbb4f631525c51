// ckpt migrate: the processes of one host of a job go on elsewhere. docs/hosts.md, "Going elsewhere".
//
// Owner: cli, the head. One thread. Callers: the head's loop.
// Order: prepare() while the job runs; bring() and end_all() while all its processes stand behind a
// checkpoint that counts.
// Never: ends a process before all hosts have said that theirs stand; has the job come back before all have
//        said that theirs are gone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"

namespace ckpt::cli {

// What a user asks for.
struct MoveWish {
  std::string from;  // a host of the job; "": that on which it was asked for
  std::string to;
  int rank = -1;  // of MPI: its host is meant; -1: none
};
MoveWish move_wish_in(const Json& question);

class Moving {
 public:
  // Which parts go, whether the host is there, and has the same ckpt and libraries as the job's. asked_on:
  // the number of the host on which it was asked for; -1: where the head is.
  static Result<std::unique_ptr<Moving>> prepare(Crew& crew, const HostsRun& run, const MoveWish& wish,
                                                 int asked_on);

  // The parts that go, to the new host, unless it can read them where they are. bring() looks whether the
  // processes can be restarted there. meanwhile: called again and again; its error ends it.
  Result<void> bring(const std::vector<HostsManifest::Part>& parts,
                     const std::function<Result<void>()>& meanwhile);
  // Ends the processes of all hosts, which stand at the checkpoint `id`. decided: called once nothing can
  // prevent that. An error before: none has ended, and all can go on.
  Result<void> end_all(uint64_t id, const std::function<void()>& decided);

  const std::vector<int>& parts() const { return parts_; }
  const std::string& to() const { return to_; }
  const std::string& from() const { return from_; }
  Crew& there() { return there_; }

 private:
  Moving(Crew& crew, const HostsRun& run, std::vector<int> parts, std::string to);
  static Result<std::string> host_of_rank(Crew& crew, int rank);
  Result<void> copy(const HostsManifest::Part& part, const std::function<Result<void>()>& meanwhile);
  Result<void> try_restart(const HostsManifest::Part& part, const std::function<Result<void>()>& meanwhile);
  Result<void> hear_from_all(const char* say, uint64_t id);

  Crew& crew_;
  const std::string launch_;
  const std::vector<int> parts_;
  const std::string from_, to_;
  Crew there_;  // the new host, as often as parts go there
};

}  // namespace ckpt::cli
