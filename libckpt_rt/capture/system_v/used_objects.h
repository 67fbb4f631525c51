// Which System V semaphore sets and message queues this process has used: the kernel keeps no such list.
//
// Owner:     interposition; in the library's data, so that an image and a forked child have it. Executing
//            another program begins anew.
// Callers:   note_used: threads of the program, in interposed calls, at any moment, also in handlers.
//            used_objects, is_list_full: the agent, threads standing.
// Never:     allocates, locks, touches errno.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "image/format/system_v_records.h"

namespace ckpt::system_v {

// The number of a set or queue, and which of the two; 0: none.
class UsedObject {
 public:
  constexpr UsedObject() = default;
  UsedObject(SystemVKind kind, int id)
      : bits_(kIs | static_cast<uint64_t>(kind) << 32 | static_cast<uint32_t>(id)) {}
  explicit UsedObject(uint64_t bits) : bits_(bits) {}
  bool is_one() const { return bits_ != 0; }
  SystemVKind kind() const { return static_cast<SystemVKind>(bits_ >> 32 & 1); }
  int id() const { return static_cast<int>(bits_ & 0xffffffff); }
  uint64_t bits() const { return bits_; }

 private:
  static constexpr uint64_t kIs = uint64_t{1} << 63;
  uint64_t bits_ = 0;
};

// The program is about to use it, or was given its number. Negative numbers are none.
void note_used(SystemVKind kind, int id);

// Some are empty, some may be there twice, some may be gone from the kernel.
std::span<const std::atomic<uint64_t>> used_objects();
// There were more at once than are known.
bool is_list_full();

// Is there one of that number? One that may not be looked at is there.
bool exists(SystemVKind kind, int id);

}  // namespace ckpt::system_v
