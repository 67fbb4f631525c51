// The keeper's side of base/protocol/keeper_protocol.h: listens, and answers until it is told to stop.
//
// Owner:     the keeper process; its main thread. It serves one client at a time, and waits one second at
//            most for one that says nothing: a client cannot make it keep anything.
// Callers:   the keeper, when it has started (cli/keeper/start_keeper.cc).
// Never:     answers another user than its own, or root.
#pragma once

#include <string>

#include "base/protocol/keeper_protocol.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "cluster/keeper/keeper_memory.h"

namespace ckpt::keeper {

// Where it listens. While this lives no other keeper has the name.
struct Place {
  ScopedFd directory;  // /tmp/ckpt-keeper-UID
  ScopedFd lock;       // NAME.lock in it
  ScopedFd listener;
  std::string socket;  // name in the directory
};

// kUnavailable: there is a keeper of that name. kPermission: the directory is another user's, or open to
// others.
Result<Place> take_place(const std::string& name);

// What it answers to all.
struct Facts {
  uint32_t huge_pages = 0;
  volatile uint64_t touched_bytes = 0;  // by the thread that touches
  int64_t since_ns = 0;
};

// Returns when a client has said kStop, or a signal has set *ended. Removes the socket's name.
void serve(const Place& place, const Memory& memory, const Facts& facts, const int volatile* ended);

}  // namespace ckpt::keeper
