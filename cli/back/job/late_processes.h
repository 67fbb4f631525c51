// The processes of a job that were born since the checkpoint: they stand while the others go back, and are
// ended then.
//
// Owner: cli. Ordinary code, one thread. Callers: JobBack.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/protocol/back_protocol.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "cli/ask/asker.h"
#include "cli/back/job/job_gate.h"
#include "cli/back/job/job_processes.h"

namespace ckpt::cli {

// "123 (name)".
std::string label_of(int pid, const std::string& name);
// Between two looks at processes that cannot be asked yet.
void wait_a_moment();

class LateProcesses {
 public:
  explicit LateProcesses(const JobGate& gate) : gate_(gate) {}

  // Asks the process to stand. A process that cannot be asked yet is left for the next look, unless that has
  // been so for too long. waited_ns: the time since the others cannot make processes any more.
  Result<void> add(const JobProcess& process, uint32_t members, const AskLimits& limits, int64_t waited_ns);
  bool has(int pid) const;
  size_t size() const { return processes_.size(); }
  std::vector<int32_t> pids() const;

  void let_stand() const;
  Result<void> hear_standing(const AskLimits& limits) const;
  void give_up() const;
  void kill() const;
  // After kill(): until all are gone.
  Result<void> wait_for_end(int64_t patience_ns) const;

 private:
  struct Process {
    Target target;
    ScopedFd connection;
  };
  // starting: an error may pass by itself.
  Result<void> ask_to_stand(const JobProcess& process, uint32_t members, const AskLimits& limits,
                            bool& starting);
  static Result<void> hear(const Process& process, const AskLimits& limits, BackSays what);
  void reply(BackReplyKind kind) const;

  const JobGate& gate_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace ckpt::cli
