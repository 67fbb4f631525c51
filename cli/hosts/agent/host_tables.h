// What processes of a job find about its hosts: two files, 0600. And the directory of a host.
//
// Owner:     cli/hosts. Callers: the agent, before it starts anything, and when a host of a job that goes
//            back is replaced.
//   .hosts-table      in this host's directory of the job; ckpt-on reads it: the key for its connections, and
//                     where each host listens
//   .hosts-addresses  in its directory of images, which may be a keeper's; libckpt_rt (interpose/addresses)
//                     reads it: where hosts are now. It is there only when one has moved
#pragma once

#include <string>

#include "base/result.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

inline constexpr const char* kOnTable = ".hosts-table";

// With its parents: they are the job's directory, which may not be shared with other hosts.
Result<void> make_host_directory(const std::string& directory);

// No other job may have its tables there: one that runs is refused (kUnavailable). The agent of a job that
// was killed ends soon: await_other_job() waits for that.
Result<void> await_other_job(const std::string& directory, const std::string& job);

// table: "job" is the name of the job, "own" that of this host; of each of "hosts" the "name", the "address",
// the "port" of ckpt-on, and the "job_address" that it had when the job began. images: a directory, or a
// keeper's.
Result<void> write_host_tables(const std::string& directory, Json table, const std::string& images);

}  // namespace ckpt::cli
