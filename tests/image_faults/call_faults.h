// Runs something in a process of its own. One of the system calls by which it changes a directory fails, or
// stops half-way, or is its last. No seam in the code is needed: the calls are changed by ptrace(2).
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace ckpt {

struct CallFault {
  enum Kind {
    kNone,
    kFail,        // returns an error, and nothing is done
    kFailOn,      // and so does every such call after it that would bring bytes to the disk
    kShort,       // writes half of the blocks, and says so
    kKillBefore,  // the process dies, and the call was not made
    kKillAfter,   // and it was made
    kTorn,        // half of the blocks are written, and the process dies
  };
  Kind kind = kNone;
  int at = 0;     // which call, from 0
  int error = 0;  // errno
};

struct CallOutcome {
  std::vector<long> calls;  // numbers of the system calls that count, in order
  bool applied = false;     // the fault was: a write of one block cannot be short
  bool killed = false;
  int exit_code = -1;
  std::string said;  // on standard error
};

// Calls count when they change `directory` or what is in it, and io_uring's own always do.
CallOutcome run_with_fault(const std::string& directory, const std::function<int()>& body,
                           const CallFault& fault);

// "pwritev", for messages.
std::string call_name(long number);

}  // namespace ckpt
