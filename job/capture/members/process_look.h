// Other processes as /proc shows them: who they are, whose children, whether the library is in them.
//
// Owner:     job. Callers: the agent. Raw system calls; memory only from the Arena given.
// Source:    proc(5). All pids are those of our own pid namespace.
#pragma once

#include <cstdint>

#include "base/memory/arena.h"

namespace ckpt::job {

struct ProcessLook {
  int pid = 0, ppid = 0, pgid = 0, sid = 0;
  int tty = 0;                // device number of the controlling terminal, 0 none
  int foreground_group = -1;  // of that terminal
  int exit_signal = 0;        // what the parent gets at its end
  int exit_status = 0;        // of one that has ended, as waitpid(2) gives it
  uint32_t threads = 0;
  uint64_t started = 0;  // clock ticks since boot: with the pid it names one process
  char state = '?';      // R, S, D, T, t, Z, X …
  char name[16] = {};
  bool ended() const { return (state == 'Z' && threads <= 1) || state == 'X' || state == 'x'; }
};
// False: the kernel shows its memory and environment to none of its user, as it is not dumpable.
bool may_look_at(int pid);
// False: there is no such process.
bool look_at(int pid, ProcessLook& look);

// Is some thread of it stopped? The process is, or is about to be: a thread that waits in the kernel for a
// protected page stops only when the page is served, and the thread of ours that serves may have stopped
// first.
bool has_stopped_thread(int pid);

// The thread that traces it (ptrace), in our pid namespace; 0: none.
int tracer_of(int pid);
// Does ckpt-beside trace it, to put the library beside it?
bool is_begun_beside(int pid);
// The process that a thread is of; 0: it is gone.
int process_of(int tid);

// Children of all its threads, but for those of threads of ours (which make them to write images). False:
// some may be missed, as the arena is full, or no descriptor is left. A process that is gone has none.
bool list_children(int pid, ArenaVector<int>& children);

// The number that was given to a process or thread last, in our pid namespace; 0: not known. Numbers are used
// again only when all others have been: the same number twice within a second, nothing was made.
int newest_pid();

// The library in another process, as far as can be told from outside.
enum class Preloaded : uint32_t {
  kReady,   // handles our signal
  kNotYet,  // between exec and the library's start: look again
  kStatic,  // no dynamic linker
  kClean,   // its environment preloads nothing of ours, or the linker may not (setuid)
  kBare,    // no environment: as kClean, or in execve(2), which sets it up last
  kAsleep,  // its environment has CKPT_DISABLE=1
  kGone,
};
// signal: the one of the settings; becomes the one that its library takes, where that has moved its signal.
Preloaded look_for_library(int pid, int& signal);
// Does its first thread block it?
bool blocks_signal(int pid, int signal);
const char* preloaded_reason(Preloaded how);  // for a manifest and for messages: "static", …

// The value of a variable in its environment, as that was at exec. False: it has none, it cannot be read, or
// it is too long.
bool read_variable(int pid, const char* name, char* value, size_t size);
// Does its environment, as it was at exec, name this job? -1: it names none, or cannot be read.
int environment_names_job(int pid, const char digits[33]);
// Does the list of its mappings name this job (show_identity(), identity.h)?
bool mappings_name_job(int pid, const char digits[33]);

}  // namespace ckpt::job
