// ckpt-restart while the program comes back and while it runs: stages, notes, signals, the end.
//
// Owner:     restart. Callers: ckpt-restart's main thread, after launch().
// Never:     writes to stdout: that is the program's.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "restart/feed/loader.h"
#include "restart/reports/report.h"
#include "restart/tree/job.h"
#include "restart/tree/launch.h"

namespace ckpt {

inline constexpr size_t kRestartStages = static_cast<size_t>(RestartStage::kGo) + 1;

struct Outcome {
  int64_t go_ns() const { return stage_ns[kRestartStages - 1]; }

  RestartStage stage = RestartStage::kStart;  // reached
  int64_t stage_ns[kRestartStages] = {};      // CLOCK_MONOTONIC when each was reported; 0 never
  int outer_pid = 0;                          // the program's pid as we see it
  std::vector<std::string> notes;
  uint32_t restorer_notes = 0;  // RestorerNote
  uint32_t library_notes = 0;   // LibraryNote
};

class Supervisor {
 public:
  // status_fd: the reading end of the RestartStatus pipe. mapping_name: what to call the mapping with
  // a number in the image, for messages.
  using MappingName = std::function<std::string(uint32_t index)>;
  // loader: nullptr when all memory is there before the program runs.
  Supervisor(Launched launched, ReportChannel report, ScopedFd status_fd, MappingName mapping_name,
             Loader* loader, JobPlace place);

  // Blocks the signals that are forwarded later; before launch(), so that none is missed.
  static void block_signals();

  // We are the parent of orphans of the program too, and see to them as an init does.
  void adopt_orphans() { adopts_ = true; }

  // Else such notes are among those of the outcome.
  void say_at_once(std::function<void(const std::string&)> say) { say_at_once_ = std::move(say); }

  // Until the library has released the threads. The error says in which stage what failed; the
  // process is gone then.
  Result<Outcome> wait_until_running();

  // Until the program ends: forwards signals, stops and goes on with it. Returns its wait status. `loaded` is
  // called when all memory of a lazy restart is there. If it could not be had, the loader has the error.
  int wait_until_ended(const std::function<void()>& loaded);

  void send(int signal);
  // What init, or a process of the restart, says. For one that came before there was a Supervisor, called by
  // its owner.
  void take_report(const Report& report, ScopedFd pidfd);

  // The program goes on without us.
  void detach();

 private:
  Result<void> read_stages();
  void reached(RestartStage stage);
  void read_reports();
  bool passes_on_from_kernel(int signal) const;
  void forward_signals();
  void reap();
  void watch_loader();
  Error death_error(int status) const;
  void end_child();

  Launched launched_;
  ReportChannel report_;
  ScopedFd status_fd_;
  MappingName mapping_name_;
  Loader* loader_;
  JobPlace place_;
  ScopedFd signals_;
  Outcome outcome_;
  std::function<void(const std::string&)> say_at_once_;
  std::optional<Error> reported_error_;
  std::optional<int> ended_;  // the program's wait status
  bool child_gone_ = false;
  bool adopts_ = false;
};

// The pid of a process as we see it; 0: not below us.
int outer_pid_of(int pidfd);

// After kGo with kStopsItself: returns when all of them are stopped or gone, so that who hears that the
// restart is done may continue them. At the latest after a second: somebody may have continued one before we
// looked.
void wait_until_stopped(std::span<const int> pids);

// Ends this process the way the program ended: the same exit code, or killed by the same signal.
[[noreturn]] void end_like(int wait_status);

}  // namespace ckpt
