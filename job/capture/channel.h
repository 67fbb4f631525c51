// Messages of job/format/wire.h over one socket.
//
// Owner:     job. Callers: agents. Raw system calls.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "job/format/wire.h"

namespace ckpt::job {

// False: the other end is gone, or takes nothing for 5 s (SO_SNDTIMEO of the socket).
bool send_message(int socket, Step step, const void* payload = nullptr, size_t bytes = 0,
                  const void* more = nullptr, size_t more_bytes = 0);

struct Message {
  Step step = Step::kNone;
  std::span<const std::byte> payload;  // in the arena
  // The payload as one of the structures, if it has that size.
  template <typename T>
  const T* as() const {
    return payload.size() == sizeof(T) ? reinterpret_cast<const T*>(payload.data()) : nullptr;
  }
};
enum class Received : uint32_t { kMessage, kClosed, kTimeout };
// kMessage: there is something to receive, or the other end is gone. deadline_ns: CLOCK_MONOTONIC, 0 never.
Received wait_for_bytes(int socket, int64_t deadline_ns);
// deadline_ns: of the whole message.
Received receive_message(int socket, int64_t deadline_ns, Arena& arena, Message& message);

// Bare bytes, no message, with a descriptor beside them. The receiver gets it in *descriptor and closes it.
// *is_whole: all bytes came, and if the descriptor did not, this process may have no more of them.
bool send_with_descriptor(int socket, const void* bytes, size_t length, int descriptor);
bool receive_with_descriptor(int socket, void* to, size_t length, int* descriptor, bool* is_whole = nullptr);

// Reads exactly `bytes`. False: the other end is gone, or they have not come within 5 s.
bool receive_exactly(int socket, void* to, size_t bytes);

// Takes one message of a plug-in off `rest`, `bytes` with its padding. False: there is none, or the rest is
// damaged.
bool take_post(std::span<const std::byte>& rest, Post& head, std::span<const std::byte>& bytes);
Error no_room_for_mail();

}  // namespace ckpt::job
