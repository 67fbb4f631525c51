// ckpt-on HOST COMMAND: runs a command on another host of the job, as ssh does; both ends are members of the
// job, and so is the connection between them.
//
// Owner:     cluster/on. One thread a process.
// Callers:   both sides of ckpt-on.
// Frames, after SealedLink's handshake, the first byte says what it is:
//   'c' the command line, for sh -c; first frame         near to far
//   'i' bytes for its standard input, 'I' its end        near to far
//   'o' 'e' bytes of its standard output and error       far to near
//   'O' 'E' nobody reads these any more                  near to far
//   'w' so much was passed on, decimal (window.h)        both
//   'x' exit status, decimal; last frame                 far to near
#pragma once

#include <string>
#include <vector>

#include "cluster/link/sealed_link.h"

namespace ckpt::cluster {

// The file that the agent has written for this host ($CKPT_ON, 0600): the job's key for these connections,
// and where each host listens.
struct OnTable {
  Secret secret{};
  std::string own;  // this host's name
  struct Host {
    std::string name, address;
    int port = 0;
  };
  std::vector<Host> hosts;
  int silence_ms = SealedLink::kSilenceMs;  // of a host, before its connections break
};
Result<OnTable> read_on_table();

// The job's first process on this host: accepts connections at the listening socket `fd`, each in a child,
// and starts the program if there is one. Returns the program's exit status; without a program it does not
// return.
int serve(int fd, char** program);

// Runs the command on `host`, with this process's standard input and outputs. Returns its exit status.
int run_on(const std::string& host, const std::string& command);

// False: not all could be written.
bool write_all(int fd, std::string_view bytes);

}  // namespace ckpt::cluster
