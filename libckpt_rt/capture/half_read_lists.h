// The program's lists of its own mappings (/proc/self/maps, smaps, numa_maps) of which it has read a part.
// The kernel goes on from an address that it alone knows. A new descriptor finds its place by counting bytes
// from the first line on, so it must be put there when the mappings are the program's again.
//
// Owner:     libckpt_rt; in the library's data, so that an image has it.
// Callers:   begin, add: the agent, in the stop. find_places: the leader at restart, alone, when memory and
//            descriptors are the program's.
// Never:     allocates, locks, touches errno.
#pragma once

#include <string_view>

namespace ckpt::half_read_lists {

// A file of /proc/PID: "/maps" and the like.
bool is_list(std::string_view rest);
void begin();
// More than sixteen: the others are left where ckpt-restart has put them.
void add(int fd);
void find_places();

}  // namespace ckpt::half_read_lists
