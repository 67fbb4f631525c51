// What waits in a socket and forbids a restart, in the user's words.
//
// Owner: libckpt_rt, sockets. Callers: the agent, in the stop.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/descriptor.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"

namespace ckpt {

inline constexpr char kUnaccepted[] =
    "what was sent through it waits in a connection that is not accepted yet, where nobody can read it: ask "
    "again "
    "later";

inline constexpr char kCorked[] =
    "it holds a datagram that is not whole yet (UDP_CORK), and that nobody can read: ask again later";

inline constexpr char kUrgentOfUnix[] =
    "an urgent byte (MSG_OOB) waits in it, whose place among the others nobody can see: ask again later";

inline constexpr char kAbandonedOrFar[] =
    "a connection waits in it to be accepted, of a client that has closed it, or that is on another host: "
    "ask again "
    "later";

inline constexpr char kAbandoned[] =
    "a connection waits in it to be accepted, and its client has closed it: what it has written can be read "
    "by "
    "nobody: ask again later";

// Only a later checkpoint can have it: when it is sent, or read.
Result<void> forbid_for_now(DescriptorNotes& notes, const char* what, const CapturedDescriptor& d);
// The same, when a server has accepted it.
Result<void> forbid_until_accepted(DescriptorNotes& notes, const char* what, const CapturedDescriptor& d);

// Another process has looked at it for too long.
Error has_no_turn(const CapturedDescriptor& d);

}  // namespace ckpt
