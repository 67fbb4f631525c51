// ckpt-restart while the processes of a job come back: the stage that each has reached, the points at which
// all wait for ckpt-restart, and the end of all when one fails.
//
// Owner:     restart. Callers: ckpt-restart's main thread, after launch().
// Never:     lets one of them run before all stand ready; leaves one behind when it has failed.
#pragma once

#include <signal.h>

#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "restart/job/job_plan.h"
#include "restart/job/meeting.h"
#include "restart/reports/report.h"
#include "restart/tree/launch.h"
#include "restart/tree/supervise.h"

namespace ckpt {

// Our ends of what the processes of a job have with us.
struct JobChannels {
  std::vector<ScopedFd> status;  // by member: RestartStatus comes from here
  ScopedFd together, go;         // one byte for each member goes in here; one more into `together`, for the
                                 // keeper of the clocks
  ScopedFd late_go;              // the same as `go`, for members that stop late (RestartStopped::kLate)
};

struct JobOutcome {
  std::array<int64_t, kRestartStages> stage_ns{};  // when the last of them had reached it
  std::vector<int> outer_pids;                     // by member, 0: a zombie
  std::vector<std::string> notes;
  std::vector<Report> of_program;  // that it has stopped or ended, already: for Supervisor::take_report()
  int64_t go_ns() const { return stage_ns[kRestartStages - 1]; }
};

class JobSupervisor {
 public:
  JobSupervisor(const JobPlan& job, Launched launched, ReportChannel report, JobChannels channels,
                Meeting& meeting);

  // Else such notes are among those of the outcome.
  void say_at_once(std::function<void(const std::string&)> say) { say_at_once_ = std::move(say); }

  // Returns when all of them run. The error names the process and the stage that failed; all of them are gone
  // then.
  Result<JobOutcome> wait_until_running();
  // For another thread: something has gone wrong that none of the processes will tell.
  void give_up(const Error& error);

  // The signal that has come before they run, and for which all were ended; 0: none.
  int ended_by() const { return ended_by_; }

  // Afterwards.
  Launched take_launched();
  ReportChannel take_report() { return std::move(report_); }

 private:
  struct Process {
    ScopedFd pidfd;
    bool gone = false;
    bool stops = false;                         // kStopsItself, and has not been seen to stand
    bool late = false;                          // RestartStopped::kLate
    RestartStage stage = RestartStage::kStart;  // of a member: reached
  };

  int asked_to_end() const;
  void read_reports();
  void take_report(Report& report, ScopedFd pidfd);
  Result<void> read_stages(size_t member);
  void reached(size_t member, RestartStage stage);
  Result<void> look_for_ends();
  Result<void> watch_planter();
  bool all_reached(RestartStage stage) const;
  void set_clocks();
  void let(ScopedFd& pipe, size_t bytes);
  Result<void> release_members();
  void await_stops();
  void wait_until_closed();
  void end_all();
  Error name_it(const Error& error, int who) const;
  std::string named(int who, const std::string& text) const;
  void note(const Report& report);
  void note(int who, const std::string& text);

  const JobPlan& job_;
  Launched launched_;
  ReportChannel report_;
  JobChannels channels_;
  Meeting& meeting_;
  std::vector<Process> processes_;  // by birth
  std::vector<int> birth_of_;       // by member, -1 none
  ScopedFd planter_, clocks_, wake_;
  const sigset_t end_signals_;
  ScopedFd ends_;  // readable: one of them has come, and nobody reads it
  int ended_by_ = 0;
  int64_t outer_clocks_[2] = {};  // offsets of the namespace that we are in: monotonic, boottime
  bool planter_gone_ = false, together_ = false, late_went_ = false, went_ = false;
  size_t members_ = 0, late_ = 0;  // with an image; of these, those that stop late
  JobOutcome outcome_;
  std::set<std::string> said_;
  std::function<void(const std::string&)> say_at_once_;
  std::optional<Error> error_;
  std::mutex lock_;
  std::optional<Error> from_elsewhere_;  // under lock_
};

}  // namespace ckpt
