// One message on a sequenced-packet socket between processes of a restart: bytes, and a few descriptors with
// them.
//
// Owner:     restart. Callers: ckpt-restart and its children, any thread. Descriptors are plain ints: the
//            receiver closes them.
// Never:     delivers half of a message.
#pragma once

#include <span>

#include "base/result.h"

namespace ckpt {

inline constexpr size_t kMostPacketFds = 2;

// 0 or -errno.
int send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

enum class Received { kMessage, kEnd, kNothing };
// kEnd: the other end is closed. kNothing: there is no message (dont_wait), one of another size, or an error.
// fds: -1 where no descriptor came.
Received receive_packet(int socket, std::span<std::byte> bytes, std::span<int> fds, bool dont_wait);

}  // namespace ckpt
