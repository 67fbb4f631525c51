// What an image says of a socket.
//
// Owner: cli. Ordinary code. Callers: plans of channels, on one host and over hosts.
#pragma once

#include <sys/socket.h>

#include "image/read/image_meta.h"
#include "restart/channels/channel_builder.h"

namespace ckpt::cli {

struct ImageSocket {
  SocketDetail detail{};  // all 0: it is none
  SocketLinkDetail link{};
  SocketName local, remote;
  bool is_tcp() const {
    return (detail.domain == AF_INET || detail.domain == AF_INET6) && detail.type == SOCK_STREAM;
  }
  bool listens() const { return is_tcp() && detail.backlog >= 0; }
};

ImageSocket socket_of(const ParsedOpenFile& f);

// A datagram socket that may hold a part of a datagram (UDP_CORK).
bool is_corked(const ParsedOpenFile& file);

}  // namespace ckpt::cli
