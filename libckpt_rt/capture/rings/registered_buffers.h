// Buffers that the program has registered with a ring (IORING_REGISTER_BUFFERS), as fdinfo shows them. The
// kernel holds their pages, and writes to them past every protection: they are copied in the pause. A buffer
// that is registered past libc and liburing has no tag, or its ring is not known.
//
// Owner:     rings; in the library's data. Callers: the agent, threads standing; register_buffers,
//            rename_rings_of_buffers: at restart.
// Never:     allocates.
#pragma once

#include <cstdint>

#include "base/memory/arena.h"
#include "base/units.h"

namespace ckpt::rings {

void begin_buffers();
// Before a ring's fdinfo is read (again).
void forget_buffers(uint64_t ring);
// False: there is no room, or too much memory is registered.
bool note_buffer(uint64_t ring, uint32_t place, uint64_t start, uint64_t bytes);
// False: no room in the list.
[[nodiscard]] bool collect_buffers(ArenaVector<Addr>& pages);

// With the new ring, which has as many places. 0, or an error.
long register_buffers(uint64_t ring, int fd, uint32_t places);
void rename_rings_of_buffers(uint64_t (*new_inode)(uint64_t inode));

}  // namespace ckpt::rings
