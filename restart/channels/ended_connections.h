// Ended connections whose port the kernel still keeps.
//
// Owner:     restart. Callers: ChannelBuilder, one thread.
// Never:     touches a connection that a process has.
// Source:    sock_diag(7). The kernel keeps them for a minute (TIME_WAIT); with CAP_NET_ADMIN they can be
//            ended.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt {

// How many there are with this local port (host order), in the network namespace. Ends those that it may.
size_t end_ended_connections(uint16_t port);

}  // namespace ckpt
