// What ckpt agent looks up about the host that it runs on, and the processes that it starts and ends there.
//
// Owner: cli. Callers: agent.cc and call_head.cc, in the agent's one thread; its warden; of own_directory()
// also the head (moving.cc).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cli/text/json_lines.h"

namespace ckpt::cli {

// What must be the same on all hosts for a process to come back on another one: checksums by name of file.
Json files_of_host();
// The directory of this program, and of those that belong to it.
std::string own_directory();
// Of the processes of the job here.
void set_environment(const Json& settings, const std::string& images, const std::string& job,
                     const std::string& host);
// Slurm's variables, as the program of `ckpt run` would have them; none: no allocation is here.
void set_allocation(const Json& variables);
// Launchers of MPI start their daemons on other hosts by `on`, the path of ckpt-on; srun is ours.
void set_launchers(const std::string& on);
// The end of the connection by which this agent was started is not its own end. The programs that it starts
// do not inherit that SIGHUP is ignored.
void ignore_hangup();
// Leads a group of its own; inherits this descriptor. -1: no process.
int start_process(const std::vector<std::string>& words, int inherited_fd);
// All processes below this one, also those that have ended and are not waited for.
std::vector<int> descendants(int of);
bool has_ended(int pid);  // also one that is not waited for
// No thread of it comes back from the kernel before it is continued or ended.
bool is_stopped(int pid);
// Is this rank of MPI among the processes below this one? By what launchers tell each rank.
bool has_rank(int rank);
// Has the first process of this host keep the connections that no process has accepted (docs/hosts.md).
// hosts: its CKPT_HOSTS. Where it is not there, or does not answer, they stay where they are: the checkpoint
// will say so.
void have_unaccepted_taken(const std::string& hosts);
// Asks all processes below this one but these to end, for two seconds, and then ends them.
void end_descendants(const std::set<int>& but);
// Ends them where they stand: none runs on because another has ended. False: one of them could not be
// stopped; none has ended.
bool end_descendants_standing(const std::set<int>& but);
// Ends them without asking or stopping them first: one that stands in a checkpoint may run for the moment in
// which others have ended.
void kill_descendants(const std::set<int>& but);

}  // namespace ckpt::cli
