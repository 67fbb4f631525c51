// The System V semaphore sets and message queues that the program uses, as they are in a stop.
//
// Owner:     one Attempt; the contents lie in its arena. Callers: the agent, all threads of all members of
//            the job standing: nobody of them changes anything meanwhile.
// Reads without taking: IPC_STAT, GETALL, msgrcv(2) with MSG_COPY. An object that cannot be read forbids a
// restart, and a note names it.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "image/format/records/system_v_records.h"

namespace ckpt {

struct CapturedSystemV {
  SystemVRecord record;
  const std::byte* data;
};

struct SystemVState {
  ArenaVector<CapturedSystemV> objects;
  ArenaVector<const char*> forbids_restart;  // why, a line each
  ArenaVector<const char*> lost;             // what is not saved, a line each
};

// Errors: no memory for the lists.
Result<SystemVState> capture_system_v(Arena& arena);
// One object that the program uses, without its contents; empty: there is none. Going back in place asks for
// no more.
std::span<const CapturedSystemV> first_system_v(Arena& arena);

}  // namespace ckpt
