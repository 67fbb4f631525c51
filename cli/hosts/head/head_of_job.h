// The head of a job over several hosts, as an object: what it knows, and the steps of a checkpoint.
//
// Owner: cli. Callers: watch_job(), in `ckpt`'s one thread.
// Files: head.cc hears hosts, users and signals, and answers them; head_checkpoint.cc leads a checkpoint;
// head_move.cc has what may follow one.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/exit_codes.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "base/settings/best_interval.h"
#include "cli/hosts/checkpoints/disk_saves.h"
#include "cli/hosts/checkpoints/records.h"
#include "cli/hosts/head/askers.h"
#include "cli/hosts/head/bookmarks.h"
#include "cli/hosts/head/head.h"
#include "cli/hosts/head/moving.h"
#include "cli/hosts/head/moving_in_place.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cluster/protocol/head_machine.h"
#include "cluster/protocol/post_office.h"

namespace ckpt::cli {

class Head {
 public:
  Head(Crew& crew, std::string job, Json table, std::string name, std::string directory, HostsRun run);
  Watched watch();
  // Behind it: what agents leave in keepers' memory when they end, and how they end the job's processes.
  void leave_hosts(const Watched& end);

 private:
  // The checkpoint that is under way, or the one before.
  struct Attempt {
    uint32_t number = 1;  // of those for one asker
    bool full = false;    // by redundancy or a move: no increment
    bool again = false;   // it failed by what passes
    int drained = 0;      // hosts
    int64_t began_ns = 0;
    std::array<int64_t, cluster::kOrders> told_ns =
        {};  // when each order went out, by cluster::Order; 0: it did not
    Bookmarks bookmarks = {};
    std::vector<HostsManifest::Part> parts = {};
    std::vector<HostsManifest::Connection> connections = {};
    std::vector<std::string> no_restart = {}, notes = {};  // what the images of all parts say
    std::string path = {};                                 // of its .hosts file
    int64_t told_at(cluster::Order order) const { return told_ns[static_cast<size_t>(order)]; }
    // From the stop to the go.
    int64_t pause_ns() const { return told_at(cluster::Order::kGo) - told_at(cluster::Order::kStop); }
    // How long the slowest host took for each step of the stop, in ns.
    Json steps_ns() const;
  };
  // Why it failed, or the job ends.
  struct Why {
    ExitCode code = ExitCode::kInternal;
    std::string text = {};  // "": it did not
    Json answer() const { return {{"code", static_cast<int>(code)}, {"error", text}}; }
  };
  struct End {
    bool has_come = false;
    int status = 0;
    bool program_failed = false;
    bool was_idle = false;  // no checkpoint was under way when a host was lost
    std::vector<int> lost = {};
    std::optional<Moved> moved = {};
  };

  // While checks were made: poll() does not tell of a connection that is closed already.
  bool broke_meanwhile(size_t h) const { return !crew_.hosts()[h].link.valid() && !gone_.contains(h); }
  const std::string& where(int h) const { return crew_.hosts()[static_cast<size_t>(h)].where; }
  std::string slowest() const { return machine_.slowest() < 0 ? "a host" : where(machine_.slowest()); }

  void fails(ExitCode code, std::string text) { why_ = {code, std::move(text)}; }

  // head.cc
  void hear_user();
  void hear_signal();
  void hear_host(int h);
  void hear_end(int h, int status);
  void take_facts(int h, cluster::Step step, const Json& j);
  void match_bookmarks();
  void hand_out_posts();
  void plan_next();
  static int time_left(std::initializer_list<int64_t> deadlines);
  void answer(Json what);
  Result<void> meanwhile(uint64_t id);

  // head_checkpoint.cc
  void begin_next();
  void begin();
  void act(const cluster::HeadMachine::Actions& actions);
  bool current_lost() const;
  Result<void> record(uint64_t id);
  void give_up_older();
  void go_back(const std::string& wish);
  // How a move ended: the job goes on where it was; the processes of one host are elsewhere, and all stand;
  // or nothing of it runs any more.
  enum class MoveEnd { kStays, kMoved, kEnded };
  MoveEnd move(uint64_t id);
  std::optional<MoveEnd> move_in_place(uint64_t id);
  void decide_move();
  void end_for_move(const Result<void>& result);
  Json finish_move();

  static constexpr uint32_t kAttempts = 3;

  Crew& crew_;
  Askers askers_;
  const std::string job_;
  Json table_;
  const std::string name_, directory_;
  const HostsRun run_;
  Records records_;
  DiskSaves saves_;
  cluster::HeadMachine machine_;
  ScopedFd signals_, users_;
  cluster::PostOffice posts_;
  std::unique_ptr<Moving> moving_;           // the user who is answered has asked for it
  std::unique_ptr<MovingInPlace> in_place_;  // of moving_
  uint64_t last_id_ = 0;
  Attempt attempt_;
  Why why_;
  End end_;
  int64_t deadline_ns_ = 0;  // of what machine_ waits for
  HostsManifest recorded_;   // of the newest checkpoint that counts
  std::set<size_t> gone_;    // hosts whose agent's end was noticed
  AutoInterval automatic_;
  int64_t next_ns_ = 0, next_word_ns_ = 0;
};

}  // namespace ckpt::cli
