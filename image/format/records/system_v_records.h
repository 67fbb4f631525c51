// System V semaphore sets and message queues: kernel objects that are known by number and belong to no
// process.
//
// Owner:     image/format. Callers: the writer and readers of images.
// Source:    semctl(2), msgctl(2), msgrcv(2) with MSG_COPY. All integers little-endian.
// Contract:  each object at most once in an image; in a job every member that uses one has it, with the same
//            contents: all of them stood while it was read.
#pragma once

#include <cstdint>

namespace ckpt {

enum class SystemVKind : uint32_t {
  kSemaphores = 0,
  kMessages = 1,
};

inline constexpr uint32_t kMostSemaphores = 65536;    // of a set; Linux allows 65535
inline constexpr uint16_t kHighestSemaphore = 32767;  // SEMVMX

// RecordType::kSystemV, then data_len bytes: of a set uint16_t values[count]; of a queue `count` messages,
// the oldest first, each a SystemVMessage and its text, padded with zeros to 8 bytes.
struct SystemVRecord {
  uint32_t kind;  // SystemVKind
  int32_t id, key;
  uint32_t mode;  // permissions, 9 bits
  uint32_t uid, gid, creator_uid, creator_gid;
  uint64_t limit;  // of a queue: msg_qbytes, bytes of text that fit; else 0
  uint32_t count;  // semaphores, messages
  uint32_t data_len;
};

struct SystemVMessage {
  int64_t type;     // > 0
  uint32_t length;  // bytes of text
  uint32_t reserved;
};

}  // namespace ckpt
