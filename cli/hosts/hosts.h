// A job over several hosts: `ckpt run --hosts`, `ckpt hosts`, `ckpt restart-hosts` (the head), `ckpt agent`
// (one a host). docs/hosts.md has who says what to whom.
//
// Owner: cli. Ordinary code; the agent has one thread more while its host's processes take a checkpoint.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "base/result.h"
#include "cluster/link/sealed_link.h"

namespace ckpt::cli {

using Json = nlohmann::json;

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
  bool every_auto = false;  // every_ns is the first (base/plan/best_interval.h)
  int64_t mtbf_ns = 0;      // of a host; 0: as this job has seen it
  bool recover = false;     // a host that dies is replaced, and the job goes on (cli/hosts/restart/recover.h)
  std::vector<std::string> spares;
  uint32_t disk_every =
      0;  // of parts in keepers' memory every N-th checkpoint goes to a disk as well; 0: none
  int silence_ms = cluster::SealedLink::kSilenceMs;  // of a host's kernel: then it is gone
};
// Until the program has ended. Its exit code, or the error's.
ExitCode run_over_hosts(const HostsRun& run);
// A checkpoint of such a run, on these hosts: on fewer than it has parts, some get several; the same host may be named
// twice.
ExitCode restart_over_hosts(const std::string& checkpoint, HostsRun run);
// Prints which hosts answer, and whether their versions fit together.
ExitCode look_at_hosts(const HostsRun& run, bool json);
// Reads what it is to do from standard input.
ExitCode run_agent();

// The abstract names at which the agent and the head of a job listen to users on their host.
std::string agent_socket_name(const std::string& job, const std::string& host);
std::string head_socket_name(int pid);
Result<ScopedFd> listen_to_users(const std::string& name);
int who_listens_to_users(const std::string& name);  // the process; 0: none
// The other end of an accepted connection is of our user, or root.
bool is_own_user(int connection);
// False: no process of this user listens there, or it does not answer. answer: a JSON object.
bool ask_over_hosts(const std::string& name, const Json& question, Json& answer);
// "JOB:HOST", as the process was started with it (CKPT_HOSTS); "": it belongs to no job over several hosts.
std::string hosts_of_process(int pid);
// As the process was started with it; "": without it, or nobody may look.
std::string variable_of_process(int pid, const std::string& variable);
// The head or the agent of the job that the process belongs to; pid: of any of its processes here, or of the head itself.
enum class JobAnswers { kNoSuchJob, kNobody, kAnswered };
JobAnswers ask_job_over_hosts(int pid, const Json& question, Json& answer);
// For a command that is meant for such jobs: the answer without what is for the link alone; nothing: kNoSuchJob. What the head
// could not do, and that nobody answers, is an error. name: of the process, as the user gave it.
Result<std::optional<Json>> answer_of_job_over_hosts(int pid, const std::string& name, const Json& question);
// Any bytes, which need be no text, in a line of JSON, and back.
Json json_of_bytes(const std::string& bytes);
std::string bytes_in(const Json& json);
// One JSON line. Reading is in time or not at all.
bool write_line(int fd, const Json& line);
bool read_line(int fd, Json& line, int timeout_ms);

// A checkpoint of all hosts: the file NAME.NNNNNN.hosts in the image directory. It counts when it has that
// name.
struct HostsManifest {
  uint64_t id = 0;
  std::string job, name;
  int64_t time_ns = 0;
  struct Part {
    std::string host, address, directory, checksum;  // of the part's manifest.json
  };
  std::vector<Part> parts;
  // Between parts: both ends, as in Bookmark lines, and the names of the parts that have them.
  struct Connection {
    std::string one, other, part_of_one, part_of_other;
  };
  std::vector<Connection> connections;
  Json table;                        // that ckpt-on reads: its key, and where each host listens
  Json redundancy = Json::object();  // of parts in keepers' memory (cli/keeper/protect.h); empty: none
  Json run = Json::object();         // what the head was told: a restart goes on with it
};
inline constexpr const char* kHostsSuffix = ".hosts";
// What a checkpoint has to remember of it, and a restart goes on with.
Json remembered(const HostsRun& run);
void remember(const Json& remembered, HostsRun& run);
Result<void> write_hosts_manifest(const std::string& directory, const HostsManifest& manifest);
Result<HostsManifest> read_hosts_manifest(const std::string& path);
// The newest in a directory, or the path itself if it is one. "": none.
std::string find_hosts_manifest(const std::string& path);
// The newest of this job in a directory, which may have those of others as well. "": none.
// passed_over: a line for each newer one that cannot be used, whose job nobody knows.
std::string newest_hosts_manifest(const std::string& directory, const std::string& job,
                                  std::vector<std::string>* passed_over = nullptr);
// The same; these lines go to standard error.
std::string newest_to_go_on_from(const std::string& directory, const std::string& job);
uint64_t last_hosts_checkpoint(const std::string& directory);
std::vector<std::string> hosts_manifests_in(const std::string& directory);  // paths, by their numbers
std::string hosts_manifest_path(const std::string& directory, const HostsManifest& manifest);
// The checkpoints, by id, oldest first, whose parts are needed with its own.
std::vector<uint64_t> needed_by(const HostsManifest& manifest);
std::string checksum_of_file(const std::string& path);  // XXH3, hexadecimal; "": cannot be read

}  // namespace ckpt::cli
