// The processes of a job, from the planter's first instruction until each becomes the saved one.
//
// Owner:     restart. Callers: launch(), in the planter. Never prints: what there is to say goes through the
//            report channel.
//
//   planter   shared things made (shared_things.h), clocks prepared, first births
//   all       births of each, session              Point::kBorn
//   all       lead their groups                    Point::kLed
//   all       join their groups                    Point::kJoined
//   helpers, planter: exit
//   others    reap their helpers                   Point::kGone
//   zombies   end as the saved process had
//   members   check their parent, die with it, become the saved process (restart/tree/process.h)
//   members   have their files                     Point::kOpened, for which those wait that watch files
#pragma once

#include <vector>

#include "restart/feed/feeder.h"
#include "restart/job/job_plan.h"
#include "restart/job/meeting.h"
#include "restart/reports/report.h"

namespace ckpt {

// Pipe ends of one member that its process needs.
struct MemberFds {
  int status = -1;  // writing end
};

struct PlanterSpec {
  const JobPlan* job = nullptr;
  Meeting* meeting = nullptr;
  std::vector<MemberFds> fds;                               // by member
  std::vector<std::unique_ptr<Feeder>>* feeders = nullptr;  // by member; nullptr: nothing is filled in
  int together_fd = -1, go_fd = -1;                         // reading ends
  int late_go_fd = -1;                                      // of members that stop late: instead of go_fd
  int restarter_pid = 0;                                    // adopts orphans in the present pid namespace
  bool new_pid_namespace = false;
};

[[noreturn]] void run_planter(const PlanterSpec& spec, ReportChannel& report, bool in_new_user);

}  // namespace ckpt
