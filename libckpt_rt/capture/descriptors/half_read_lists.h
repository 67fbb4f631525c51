// The program's lists of its own mappings (/proc/self/maps and the like) of which it has read a part. The
// kernel goes on from an address that it alone knows. A new descriptor finds its place by counting bytes from
// the first line on, which are not the same bytes where a mapping of ours is, or is no more. So the place is
// noted as the line at which the program stands, and found again when the mappings are the program's again.
//
// Owner:     libckpt_rt; in the library's data, so that an image has it.
// Callers:   begin, add: the agent, in the stop. find_places: the leader at restart, alone, when memory and
//            descriptors are the program's.
// Never:     allocates, locks, touches errno.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/units.h"

namespace ckpt::half_read_lists {

// A file of /proc/PID: "/maps" and the like.
bool is_list(std::string_view rest);
void begin();
// own: mappings of this checkpoint which the program has not seen in that list. False: as far as can be told
// the list is read to its end. More than sixteen lists: the others are left where ckpt-restart has put them.
bool add(int fd, std::string_view rest, uint64_t position, std::span<const AddrRange> own);
void find_places();

}  // namespace ckpt::half_read_lists
