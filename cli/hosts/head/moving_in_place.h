// ckpt migrate while the others stay: the processes of one host go on elsewhere, and those of all other hosts
// stand at the same instant and get new connections to them. docs/hosts.md, "Going elsewhere".
//
// Owner: cli, the head. One thread. Callers: the head's loop.
// Order: run() while all processes stand behind a checkpoint that counts; then the checkpoint's commit lets
// those of the other
//        hosts go, and release() those of the new one.
// Never: lets a process of the new host run before those of the old one have ended, or ends one of these
//        before the new host and all connections are ready.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/head/hear_each.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/restart/part_starts.h"

namespace ckpt::cli {

class MovingInPlace {
 public:
  // there: the new host's agents, one for each part, which have taken the names of these. These agents become
  // hosts of the crew; the old ones are in `there` then. After an error of run() all are where they were when
  // this is destroyed.
  MovingInPlace(Crew& crew, Crew& there, std::vector<int> parts, const HostsRun& run, HostsManifest manifest,
                std::string path);
  ~MovingInPlace();
  MovingInPlace(const MovingInPlace&) = delete;
  MovingInPlace& operator=(const MovingInPlace&) = delete;

  // id: of the checkpoint. decided: called once, with the crew as it was, before the first process ends.
  Result<void> run(uint64_t id, const std::function<Result<void>()>& meanwhile,
                   const std::function<void()>& decided);
  bool was_decided() const { return decided_; }
  // After an error of run(): a process has what only a restart of all hosts can move. Nothing was begun.
  bool takes_restart() const { return takes_restart_; }
  // After an error of run(), if it was decided: is it known that nothing runs on the old host? If not, the
  // job must not be started again.
  bool old_has_ended() const { return old_has_ended_; }
  // Then: ends the processes of all hosts where they stand.
  Result<void> end_all();
  // When the others have been let go. Returns when the new host's processes run.
  Result<void> release();
  // Where the hosts are now.
  const Json& table() const { return starts_->table(); }

 private:
  void swap_hosts();
  bool goes(size_t part) const;
  void tell_others(const Json& what);
  void tell_new(const Json& what);
  std::string cookie_of(size_t part) const;
  std::vector<AwaitedWord> words(const AwaitedWord& of_others, const AwaitedWord& of_new) const;
  AwaitedWord step(const char* name) const { return {"back_step", name, number_}; }
  Result<std::vector<Json>> hear(const std::vector<AwaitedWord>& awaited, int64_t patience_ns,
                                 const std::function<Result<void>()>& meanwhile);
  Result<void> get_ready(const std::function<Result<void>()>& meanwhile);
  Result<void> all_stand();
  Result<void> end_old();

  Crew &crew_, &there_;
  const std::vector<int> parts_;
  const HostsRun& run_;
  const HostsManifest manifest_;
  const std::string path_;
  const uint64_t number_;  // of this attempt
  const uint64_t cookie_;
  std::optional<PartStarts> starts_;
  uint64_t id_ = 0;
  int64_t next_word_ns_ = 0;
  bool decided_ = false, takes_restart_ = false, old_has_ended_ = false, has_moved_ = false;
};

}  // namespace ckpt::cli
