// The interface by which a socket sends to groups, where the program chose it by its number (IP_MULTICAST_IF
// with an ip_mreqn): getsockopt(2) tells an address alone, which is none then.
//
// Owner:     libckpt_rt, in its own data, so that an image and a forked child have it: kMost sockets. A
//            socket is known by its cookie, which no other has; after a restart by its number once more.
// Callers:   before, after: the thread that calls setsockopt(2), also in handlers. put: the agent, in the
//            stop. find_again: the leader of a restart, when all descriptors are there.
// Never:     allocates, locks, touches errno. What was chosen past libc, or before an exec, is not known.
//
// Noted ahead of the call: a thread that stands between the two calls setsockopt(2) once more after the
// restart. A call that fails takes the note back.
#pragma once

#include <netinet/in.h>
#include <stdint.h>

#include "base/memory/bytes.h"

namespace ckpt::multicast_choices {

inline constexpr uint32_t kMost = 1024;

struct Note {
  uint32_t place = 0;  // + 1; 0: nothing was noted
  uint64_t before = 0;
};
// chosen: all zero where the call says no number.
Note before(int fd, const ip_mreqn& chosen);
void after(const Note& note, bool succeeded);

// In a stop, ahead of all put().
void begin();
// As an option of the socket that `socket` leads to, and descriptor `fd` of the program (-1: of none now).
// False: no room was left to note what is chosen for this socket, if anything is.
bool put(ByteWriter& out, int socket, int fd);
void find_again();

}  // namespace ckpt::multicast_choices
