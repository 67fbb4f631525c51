// ckpt back of a job over several hosts: the processes of all hosts go back to a checkpoint in place, or none
// does. docs/back.md, "A job over hosts".
//
// Owner: cli, the head. One thread. Callers: the head.
// Never:     lets a process go on before those of all hosts have gone back.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/restart/part_starts.h"

namespace ckpt::cli {

// What a user asks for: a .hosts file, or its directory; "": the job's newest checkpoint. nullopt: something
// else.
std::optional<std::string> back_wish_in(const Json& question);

class GoingBack {
 public:
  // path: a checkpoint of this job. Errors: this job or checkpoint cannot go back in place.
  static Result<GoingBack> prepare(Crew& crew, const std::string& job, const std::string& path);

  // parts: of hosts that have died. Other hosts are in their place by now, with agents; these parts are
  // restarted there while those of the other hosts go back. Before run(). starts outlives this.
  void take_in(std::vector<int> parts, const PartStarts& starts);
  // What it cost. After an error all go on as they were, unless was_decided(). meanwhile: called again and
  // again; its error ends the attempt.
  Result<Json> run(const std::function<Result<void>()>& meanwhile);
  bool was_decided() const { return decided_; }
  // After an error of run(), if it was decided: some processes are as they were then, and some as they are
  // now. Ends all of them, where they stand. An error: whether some of them run on is not known.
  Result<void> end_all();
  const std::string& path() const { return path_; }
  // After an error of run(): of which host it was; -1: of none.
  int failed_host() const { return failed_host_; }

 private:
  GoingBack(Crew& crew, HostsManifest manifest, std::string path);
  Result<Json> all_steps(const std::function<Result<void>()>& meanwhile);
  void tell_plans();
  void tell_step(const std::string& step);
  bool is_new(int part) const { return std::find(new_.begin(), new_.end(), part) != new_.end(); }
  bool leads_to_new(const HostsManifest::Connection& c) const;
  // What one host says at a step. "": nothing is waited for.
  struct Expected {
    std::string say, step;
  };
  Expected expected_of(int part, const std::string& step) const;
  // A message of each host. step: as above; "gone": the answer to the order to end.
  Result<std::vector<Json>> hear_all(const std::string& step, const std::function<Result<void>()>& meanwhile);
  // Of what a host says. Errors end the attempt.
  Result<void> take(int host, Json said, const Expected& expected, Json& wanted,
                    std::vector<Json>& others) const;
  Result<void> check_connections(const std::vector<Json>& said) const;

  Crew& crew_;
  HostsManifest manifest_;
  std::string path_;
  std::vector<std::string> passed_over_;  // newer checkpoints
  const uint64_t number_;  // of this attempt: what hosts say late of one before is not for this one
  bool decided_ = false, told_to_go_ = false;
  std::vector<int> new_;  // parts whose hosts have died
  const PartStarts* starts_ = nullptr;
  int failed_host_ = -1;
};

}  // namespace ckpt::cli
