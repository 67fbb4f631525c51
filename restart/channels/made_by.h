// Makes calls as another process of the job would: the kernel notes in a Unix socket which process and user
// made it, connected it or listened at it (SO_PEERCRED), and who sent a message (SCM_CREDENTIALS).
//
// Owner:     restart/channels. Callers: ChannelBuilder, which runs before that process is there; one thread.
// Never:     leaves a process behind, or a signal that says that one has ended.
#pragma once

#include <sys/socket.h>

#include <array>
#include <functional>

namespace ckpt {

struct CallAs {
  long result = -1;                // of the call
  int error = 0;                   // errno, where the result is negative
  int no_process = 0;              // errno, where no process could have that number: the caller has called
  std::array<int, 2> values = {};  // descriptors that the call has given
};

// `call` runs in a process with the number and the user of `who`, or in the caller where that is itself. That
// process has the caller's descriptors, and a copy of its memory. pid 0: nobody knows who; the caller.
CallAs call_as(const ucred& who, const std::function<long(std::array<int, 2>& values)>& call);

}  // namespace ckpt
