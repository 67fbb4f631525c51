// Programs that choose in a group of sockets with one port who gets what comes (SO_ATTACH_REUSEPORT_CBPF):
// the kernel shows them to nobody.
//
// Owner:     libckpt_rt, in its own data, so that an image and a forked child have it: kMost sockets,
//            kMostCode bytes of programs. A socket is known by its cookie, which no other has; after a
//            restart by its number once more.
// Callers:   before, after: the thread that calls setsockopt(2), also in handlers. put: the agent, in the
//            stop. find_again: the leader of a restart, when all descriptors are there.
// Never:     allocates, locks, touches errno. A filter that was set past libc, or before an exec, is not
//            known.
//
// Noted ahead of the call: a thread that stands between the two calls setsockopt(2) once more after the
// restart. A call that fails takes the note back.
#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <span>

#include "base/memory/bytes.h"

namespace ckpt::group_filters {

inline constexpr uint32_t kMost = 1024, kMostCode = 256 << 10;

// What an option does to the program of a group.
enum class Change { kSet, kSetUnknown /* eBPF */, kTake };
// The option is one of these.
bool is_of_group(int level, int option, Change& change);

struct Note {
  uint32_t place = 0;  // + 1; 0: nothing was noted
  uint64_t before = 0;
  int64_t before_ns = 0;
};
// code: as the program gave it, readable; only of kSet. Nothing at all: the kernel will refuse it.
Note before(int fd, Change change, std::span<const sock_filter> code);
void after(const Note& note, bool succeeded);

// In a stop, ahead of all put().
void begin();
enum class Put { kNothing, kProgram, kUnknown };  // unknown: one of eBPF, or no room was left to note it
// As an option of the socket that `socket` leads to, and descriptor `fd` of the program (-1: of none now).
// A group's program that was taken away, or is unknown, is an option without code: what another socket of the
// group was given earlier does not hold any more.
Put put(ByteWriter& out, int socket, int fd);
// shift_ns: of CLOCK_MONOTONIC, from that of the checkpoint to that of now.
void find_again(int64_t shift_ns);

}  // namespace ckpt::group_filters
