// A running program that is to be asked for something: is it there, ours, preloaded, able to answer?
//
// Owner: cli. Ordinary code, one thread. Callers: commands that ask a program.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::cli {

struct Target {
  pid_t pid = 0;               // in our pid namespace
  pid_t inner_pid = 0;         // in its own
  std::string name;            // /proc/PID/comm
  char state = '?';            // proc(5)
  int signal = 0;              // the checkpoint signal it listens to
  unsigned uid = 0;            // its effective user, as we see it
  std::string library;         // path of its libckpt_rt.so
  bool other_network = false;  // it is in another network namespace
  ScopedFd pidfd;              // stays its own when the number is used again
};

// Everything is checked before a signal may be sent: to a program without a handler for it the
// checkpoint signal is deadly.
// *starting: what is said of it may pass soon, by itself: it is on its way from vfork or execve to the start
// of the library.
Result<Target> examine_target(pid_t pid, bool* starting = nullptr);

// The same, where a process that is starting is waited for.
// A process that stands still there (SIGSTOP) is not waited for.
Result<Target> await_target(pid_t pid, int64_t most_ns = 30'000'000'000);

// The state letter of /proc/PID/stat now; '\0' when the process is gone.
char process_state(pid_t pid);

// The library is at work in it: a checkpoint is being taken, and requests wait for their turn.
bool checkpoint_under_way(pid_t pid);

// "17" -> pid; kUsage for anything that is not a positive number.
Result<pid_t> parse_pid(const std::string& text);

}  // namespace ckpt::cli
