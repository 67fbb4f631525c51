// One host's share in making or using redundancy: `ckpt keeper-exchange`, a process of its own at low
// priority, which the host's agent starts for the first checkpoint. It lives on for those that follow, with
// its connections to the other hosts. Orders and reports are lines on a socket.
//
//   agent, from the head             process
//   plan                      -->
//                             <--    {"say": "port", ...}   it listens; what its part is; what connections it has
//   {"ports", "lengths"}      -->                           all listen. {"connected"}: all have these connections yet
//                             <--    {"say": "done", ...}   its checks, or its part, have their names
// At any time {"say": "failed", "code", "errno", "text"}; then it ends. So it does behind a plan of what is
// lost, which it carries out at the job's priority.
//
// Owner: cli, the agent. One thread; the process has those of cluster/keeper/mesh.h. Callers: the agent.
#pragma once

#include <string>

#include "base/exit_codes.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "cli/text/json_lines.h"

namespace ckpt::cli {

// A part in a keeper's memory, "/tmp/ckpt-keeper-UID/NAME.keeper/X.job".
struct PartInKeeper {
  ScopedFd directory;  // the keeper's
  std::string name;    // in it
  // As a path of this process, while this lives.
  std::string path() const;
};
Result<PartInKeeper> find_part_in_keeper(const std::string& path);

// The file of checks that belongs to a part, in the same directory.
std::string checks_of(const std::string& part);

class ExchangeProcess {
 public:
  // Whether the process ends with its plan, or lives on for the next one.
  enum class Life { kOnePlan, kStays };
  // command: of `ckpt`, which reads its plan and says how it ended as above.
  explicit ExchangeProcess(const char* command, Life life = Life::kOnePlan)
      : command_(command), life_(life) {}
  ~ExchangeProcess() { end(); }
  Result<void> begin(const Json& plan);
  void go(const Json& all);
  int fd() const { return socket_.get(); }
  bool running() const { return socket_.valid(); }
  uint64_t id() const { return id_; }
  // The next line of the process; if it has ended without a last line, that it failed. Null: it has ended
  // with nothing to do.
  Json hear();
  void end();

 private:
  Result<void> start();

  const char* const command_;
  const Life life_;
  bool works_ = false, stays_ = false;  // it has a plan; it is there for the next one
  ScopedFd socket_;
  ScopedFd child_;   // pidfd: the agent reaps the process, and its number may come to another one
  uint64_t id_ = 0;  // of the checkpoint: what is said of another one is old
};

// The same line as the agent tells it to the head: "exchange_port", "exchange_done", or "failed" of
// "exchange".
Json message_of_exchange(Json line, uint64_t id = 0);
// "saved", or "failed" of "save".
Json message_of_save(Json line, uint64_t id);
// "back_step", "back_done" or "back_failed": of this host's processes on their way back
// (cli/back/job/job_back.h).
Json message_of_back(Json line, uint64_t id);
Json message_of_error(const Error& error);

// The process; its socket is standard input.
ExitCode run_exchange();
// The same of what saves this host's part to a disk: "done" has "part" and "checksum".
ExitCode run_save();

}  // namespace ckpt::cli
