// What one thread may do: users, groups, capabilities, secure bits. The kernel keeps all of it for each
// thread. libc's functions (setuid(3)) tell all threads; setfsuid(2), capset(2), prctl(2) and calls past libc
// change only their own.
//
// Owner:     the thread: a part of its ThreadSlot, in the image.
// Callers:   save_credentials_in_handler: the stopping thread. note_own_sets: a thread of the program. The
//            others: its successor at a restart, all signals blocked.
// Never:     has a thread that is under filters of system calls (seccomp, also those of a container) ask for
//            anything but whether it is. /proc tells the agent all of it (capture/threads/thread_users.h) but
//            the secure bits: those are the process's.
// A restart never gives a thread more than it had without a word. Until it has become what it was, it has all
// that ckpt-restart has: threads of one process may have given up different rights.
#pragma once

#include <cstdint>

namespace ckpt {

struct ThreadCredentials {
  static constexpr uint32_t kMostGroups = 32;  // of more only the count is known
  bool known = false;
  bool knows_sets = false;   // the two of capabilities at the end; else they are the process's
  int32_t secure_bits = -1;  // -1: those of the process
  int32_t no_new_privs = 0;
  uint32_t uid[4] = {}, gid[4] = {};  // real, effective, saved, file system
  uint32_t group_count = 0;
  uint32_t groups[kMostGroups] = {};
  uint64_t effective = 0, permitted = 0, inheritable = 0;  // capabilities
  uint64_t bounding = 0, ambient = 0;
  static constexpr uint32_t kUntoldFilters = UINT32_MAX;  // before Linux 5.9
  uint32_t filters = 0;                                   // of system calls (seccomp)

  bool knows_groups() const { return group_count <= kMostGroups; }
};

// The calling thread: of system calls (seccomp).
bool is_under_filters();

// Some thread changes its bounding or ambient set: from now on each is asked for its own, which takes 80
// system calls.
void note_own_sets();

void save_credentials_in_handler(ThreadCredentials& credentials);

// The thread becomes the user that it was, if that is another than it is now. may_choose: ckpt-restart may
// choose users; then what is refused is an error, for the thread would go on with other rights than it had.
// Else the process has those of ckpt-restart, and so has a thread that was as the `first` one; of another one
// what is refused is a note.
long become_user_of_thread(const ThreadCredentials& wanted, const ThreadCredentials& first, bool may_choose,
                           uint32_t& notes);

// What the process is to have, of what ckpt-restart has. `differ`: that is less than it has now.
struct ProcessCapabilities {
  bool differ;
  uint64_t effective, permitted, inheritable, bounding, ambient;
  int32_t secure_bits;
};
// Secure bits, and the thread's own capabilities, never more than it has now: the others that the restart has
// kept until here (RestorerArgs::extra_capabilities) are given up.
long restore_capabilities_of_thread(const ThreadCredentials& credentials,
                                    const ProcessCapabilities& of_process, uint32_t& notes);

}  // namespace ckpt
