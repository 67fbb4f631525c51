// The buffers from which chunks are being written, by the slot of the chunk, until the chunks are written.
//
// Owner:     image/write (ChunkWriter). Callers: the sink's thread only, in the victim. Memory from the arena
//            of start().
// Never:     releases a buffer twice, or while its slot is in flight.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "image/write/image_sink.h"

namespace ckpt {

class HeldBuffers {
 public:
  static size_t arena_bytes(uint32_t slots) { return slots * sizeof(Slot); }
  // most: at a time, of all slots together. So few that each slot had none: not active.
  Result<void> start(uint32_t slots, size_t most, ReleaseBuffer release, void* context, Arena& arena);
  bool active() const { return !slots_.empty(); }
  bool full(uint32_t slot) const { return slots_[slot].count == by_slot_; }
  void add(uint32_t slot, uint32_t buffer) { slots_[slot].buffers[slots_[slot].count++] = buffer; }
  // The slot's chunk is written, or never will be: releases its buffers.
  void release_slot(uint32_t slot);
  // Releases all. Any number of times.
  void stop();

 private:
  static constexpr uint32_t kMostBySlot = 256;
  struct Slot {
    uint32_t count;
    uint32_t buffers[kMostBySlot];
  };
  std::span<Slot> slots_;
  uint32_t by_slot_ = 0;
  ReleaseBuffer release_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace ckpt
