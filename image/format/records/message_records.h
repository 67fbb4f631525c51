// What an image says of messages without a byte, beside SocketMessageDetail. Written by the library, read by
// a restart.
#pragma once

#include <cstdint>

#include "image/format/records/descriptor_records.h"

namespace ckpt {

// Of a datagram or packet socket: one for each message without a byte.
inline constexpr auto kEmptyMessage = static_cast<OpenFileDetail>(25);

// Of several processes that have a socket, only one sees a message without a byte, unless it is the first:
// the kernel shows it once. So each image has some of them, and the time puts those of all in order.
struct EmptyMessageDetail {
  uint32_t number;  // SocketMessageDetail::number
  uint32_t reserved;
  int64_t seen_ns;  // CLOCK_MONOTONIC, when it was seen first
};

}  // namespace ckpt
