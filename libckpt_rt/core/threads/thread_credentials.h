// What one thread may do: users, groups, capabilities, secure bits. The kernel keeps all of it for each thread. libc's
// functions (setuid(3)) tell all threads; setfsuid(2), capset(2), prctl(2) and calls past libc change only their own.
//
// Owner:     the thread: a part of its ThreadSlot, in the image.
// Callers:   save_credentials_in_handler: the stopping thread. The others: its successor at a restart, all signals blocked.
// Never:     asks a thread that has filtered its system calls (seccomp) for anything but whether it has: `known` says so. A
//            restart gives such a thread what the process has.
#pragma once

#include <cstdint>

namespace ckpt {

struct ThreadCredentials {
  static constexpr uint32_t kMostGroups = 32;  // of more only the count is known
  bool known = false;
  int32_t secure_bits = 0, no_new_privs = 0;
  uint32_t uid[4] = {}, gid[4] = {};  // real, effective, saved, file system
  uint32_t group_count = 0;
  uint32_t groups[kMostGroups] = {};
  uint64_t effective = 0, permitted = 0, inheritable = 0;  // capabilities

  bool knows_groups() const { return group_count <= kMostGroups; }
};

void save_credentials_in_handler(ThreadCredentials& credentials);

// The thread becomes the user that it was, if that is another than the process's (that of its first thread: `of_process`),
// which it has now. Adds to `notes` what it cannot have; an error where it would go on with more rights than it had.
long become_user_of_thread(const ThreadCredentials& wanted, const ThreadCredentials& of_process,
                           uint32_t& notes);

// What the process is to have, of what ckpt-restart has. `differ`: that is less than it has now.
struct ProcessCapabilities {
  bool differ;
  uint64_t effective, permitted, inheritable, ambient;
};
// Secure bits, and the thread's own capabilities, never more than it has now: some that only the restart needs
// (RestorerArgs::keep_capabilities) are given up.
long restore_capabilities_of_thread(const ThreadCredentials& credentials,
                                    const ProcessCapabilities& of_process, uint32_t& notes);

}  // namespace ckpt
