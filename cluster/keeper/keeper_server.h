// The keeper's side of base/protocol/keeper_protocol.h: listens, and answers until it is told to stop.
//
// Owner:     the keeper process; its main thread. A client that says nothing is waited for one second at most, and one
//            at a time, so that no client can make it keep anything.
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

// kUnavailable: there is a keeper of that name. kPermission: the directory is somebody else's.
Result<Place> take_place(const std::string& name);

// What it answers to all.
struct Facts {
  uint32_t huge_pages = 0;
  volatile uint64_t touched_bytes = 0;  // by the thread that touches
  int64_t since_ns = 0;
};

// Until a client says kStop or *ended is set by a signal. The socket's name is gone then.
void serve(const Place& place, const Memory& memory, const Facts& facts, const int volatile* ended);

}  // namespace ckpt::keeper
