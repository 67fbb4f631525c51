// ckpt back of a job over several hosts: the processes of all hosts go back to a checkpoint in place, or none does. docs/back.md,
// "A job over hosts".
//
// Owner: cli, the head. One thread.
// Never:     lets a process go on before those of all hosts have gone back.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cli/hosts/crew.h"

namespace ckpt::cli {

// What a user asks for: a .hosts file, or its directory; "": the job's newest checkpoint. None: he asks for something else.
std::optional<std::string> back_wish_in(const Json& question);

class GoingBack {
 public:
  // manifest: a checkpoint of this job. Errors: this job or checkpoint can not go back in place.
  static Result<GoingBack> prepare(Crew& crew, const HostsRun& run, const Json& table, const std::string& job,
                                   const std::string& path);

  // What it cost. After an error all go on as they were, unless was_decided(). meanwhile: called again and again; its error ends it.
  Result<Json> run(const std::function<Result<void>()>& meanwhile);
  bool was_decided() const { return decided_; }
  // After an error of run(), if it was decided: some are as they were then, and some as they are now. Ends all of them, where they
  // stand. An error: whether some of them run on is not known.
  Result<void> end_all();
  const std::string& path() const { return path_; }

 private:
  GoingBack(Crew& crew, HostsManifest manifest, std::string path);
  Result<Json> all_steps(const std::function<Result<void>()>& meanwhile);
  // A message of each host. step: with that "step"; "": any.
  Result<std::vector<Json>> hear_all(const std::string& say, const std::string& step,
                                     const std::function<Result<void>()>& meanwhile);
  Result<void> check_connections(const std::vector<Json>& said) const;

  Crew& crew_;
  HostsManifest manifest_;
  std::string path_;
  const uint64_t number_;  // of this attempt: what hosts say late of one before is not for this one
  bool decided_ = false;
};

}  // namespace ckpt::cli
