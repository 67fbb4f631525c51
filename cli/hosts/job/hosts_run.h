// What the head of a job over hosts was told: hosts, program, settings.
//
// Owner: cli. Ordinary code, any thread. Callers: all of cli that knows of hosts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/text/json_lines.h"
#include "cluster/link/sealed_link.h"

namespace ckpt::cli {

// The last address that agents try: of a head on their own host.
inline constexpr const char* kLoopback = "127.0.0.1";

// How agents are started: words, in which {host} is the host; without one the host is the last word.
std::vector<std::string> launch_words(const std::string& launch, const std::string& host);
// "h1,h2"; empty names and the same twice are errors unless `repeats`.
Result<std::vector<std::string>> split_hosts(const std::string& list, bool repeats);

inline constexpr const char* kDefaultLaunch = "ssh -o BatchMode=yes {host}";

struct HostsRun {
  std::vector<std::string> hosts;
  std::string launch = kDefaultLaunch;
  std::vector<std::string> program;
  std::map<std::string, std::string> settings;  // CKPT_*
  int64_t every_ns = 0;
  int keep = 2;
  int64_t stop_timeout_ns = 2'000'000'000;
  std::string keeper;  // the name of each host's keeper, to which parts go; "": to a directory
  uint64_t keeper_bytes = 0;
  std::string redundancy;   // over the hosts' keepers; "": none
  uint32_t increments = 0;  // with redundancy: at most so many checkpoints between two full ones
  bool every_auto = false;  // every_ns is the first (base/settings/best_interval.h)
  int64_t mtbf_ns = 0;      // of a host; 0: as this job has seen it
  bool recover = false;     // a host that dies is replaced, and the job goes on (cli/hosts/restart/recover.h)
  std::vector<std::string> spares;
  uint32_t disk_every =
      0;  // of parts in keepers' memory every N-th checkpoint goes to a disk as well; 0: none
  std::map<std::string, std::string> allocation = {};  // Slurm's variables; empty: none is here
  std::map<std::string, std::string> mpi = {};         // what the user has told MPI in his environment
  int silence_ms = cluster::SealedLink::kSilenceMs;    // of a host's kernel: then it is gone
  std::vector<std::string> restart_words = {};         // options of ckpt-restart for each part
  std::vector<unsigned> checks_on = {};  // parts, by number, whose hosts have the checks; empty: all
  bool words = true;                     // redundancy is over words that differ, where that is less
  bool words_of_full = false;            // of full images too
};

// --checks-on: "h5,h6" of these hosts, or how many of the last ones. As many as there are checks.
Result<std::vector<unsigned>> hosts_for_checks(const std::string& text, const std::vector<std::string>& hosts,
                                               unsigned checks);

// What a checkpoint has to remember of it, and a restart goes on with.
Json remembered(const HostsRun& run);
void remember(const Json& remembered, HostsRun& run);

}  // namespace ckpt::cli
