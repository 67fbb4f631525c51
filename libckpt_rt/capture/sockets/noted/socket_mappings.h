// Memory into which a TCP socket can map what it receives (TCP_ZEROCOPY_RECEIVE): mapped from the socket, and
// empty but for what the program has received so. The image has its place as memory without a page; a restart
// maps the new socket there.
//
// Owner:     libckpt_rt; in the library's data, so that an image has it.
// Callers:   begin, note: the agent, threads standing. map_again: the leader at restart, when all descriptors
//            are there.
// Never:     allocates.
#pragma once

#include <string_view>

#include "base/units.h"

namespace ckpt::socket_mappings {

// What /proc/PID/maps calls it.
inline constexpr std::string_view kPath = "socket:[";

void begin();
// False: it cannot be mapped again: something was received into it, there are too many, or no memory map of
// the kernel's says.
bool note(AddrRange range, uint64_t offset, bool shared, int fd);
// The first error, or 0.
long map_again();

}  // namespace ckpt::socket_mappings
