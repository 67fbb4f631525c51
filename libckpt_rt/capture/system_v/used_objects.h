// Which System V semaphore sets and message queues this process has used, and which shared memory it has had
// attached: the kernel keeps no such list.
//
// Owner:     libckpt_rt/interpose; in the library's data, so that an image and a forked child have it.
//            Executing another program begins anew.
// Callers:   note_used: threads of the program, in interposed calls, at any moment, also in handlers.
//            next_used, is_list_full: the agent, threads standing.
// Never:     allocates, locks, touches errno.
#pragma once

#include <cstdint>

#include "image/format/records/system_v_records.h"

namespace ckpt::system_v {

// In no image: memory that a process has attached is one of its mappings.
inline constexpr auto kSharedMemory = static_cast<SystemVKind>(2);

struct UsedObject {
  SystemVKind kind;
  int id;
};

// The program is about to use it, or was given its number. Negative numbers are none.
void note_used(SystemVKind kind, int id);

// The next one from place `at` on, which is moved behind it; begin with 0. False: no more. Some may be gone
// from the kernel.
bool next_used(uint32_t& at, UsedObject& object);
// There were more at once than can be known.
bool is_list_full();

// Is there an object of that number? An object that may not be looked at is there.
bool exists(SystemVKind kind, int id);

}  // namespace ckpt::system_v
