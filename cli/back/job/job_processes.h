// The processes of a job, as /proc shows them now.
//
// Owner: cli. Ordinary code, one thread. Callers: JobBack and ChannelPlan.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ckpt::cli {

struct JobProcess {
  int pid = 0, ppid = 0, pgid = 0, sid = 0;
  uint64_t terminal = 0;      // device number of the controlling one, 0 none
  int foreground_group = -1;  // of that terminal
  uint64_t started = 0;       // clock ticks since boot: with the pid it names one process
  char state = '?';
  std::string name;
  bool ended() const { return state == 'Z' || state == 'X' || state == 'x'; }
};

// False: there is no such process.
bool look_at_process(int pid, JobProcess& process);
// Does it use the memory of its parent, which waits for it (a child of vfork)?
bool borrows_memory(const JobProcess& process);

class JobProcesses {
 public:
  // digits: the job's id as its environment has it. members: processes that belong to it in any case.
  // over_hosts: other parts of the job may be on this host, in pid namespaces of their own below this one.
  JobProcesses(std::string digits, std::set<int> members, bool over_hosts)
      : digits_(std::move(digits)), members_(std::move(members)), over_hosts_(over_hosts) {}
  // All processes of the job but this process and its ancestors. By pid.
  std::vector<JobProcess> list();

 private:
  bool names_job(int pid) const;

  const std::string digits_;
  const std::set<int> members_;
  const bool over_hosts_;
  std::map<int, uint64_t> strangers_;  // looked at before: pid and `started`
};

}  // namespace ckpt::cli
