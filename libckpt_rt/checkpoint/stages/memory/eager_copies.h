// Copies that are made while threads stand still, of memory that cannot be protected or shall not be: first
// runs of pages, then what was copied of them.
//
// Owner:     one Attempt. Callers: the agent: make_room_*() ahead of the stop, add() and copy() in it. The
//            writer thread reads segments() after it.
#pragma once

#include <span>

#include "copier/copier.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"

namespace ckpt {

class MemoryMap;
class PageScan;
class StillMemory;

// Segments whose bytes are in no buffer of the pool.
inline constexpr uint32_t kNoBuffer = UINT32_MAX;

class EagerCopies {
 public:
  void make_lists(Arena& arena);
  // Room for a copy of all memory, touched ahead of the pause in which the copy is made.
  Result<void> make_room_for_all(uint64_t resident, Workspace& space);
  // Room for what is copied in the pause, touched ahead of it. More is taken in the pause if this is not
  // enough.
  // spare: may have the room of the checkpoint before.
  Result<void> make_room(const MemoryMap& map, PageScan& pages, size_t threads, Workspace& space,
                         SpareMemory& spare);
  // The same in mode fork, for `bytes`: its child writes these copies.
  void make_room_for_child(uint64_t bytes, Workspace& space);
  // In the stop, around the making of that child.
  void show_to_child(bool shown) const;
  // All is written: the next checkpoint gets the room, if it is that of a small one.
  void leave_to(SpareMemory& spare);

  Result<void> add(std::span<const AddrRange> runs);
  Result<void> copy(const MemoryMap& map, StillMemory& memory);
  std::span<const CopiedSegment> segments() const { return copied_.span(); }
  uint64_t bytes() const;
  AddrRange memory() const { return arena_.range(); }  // that the copies are in

 private:
  // At most 64 pages.
  struct Piece {
    Addr from;
    uint64_t bytes;
    std::byte* to;
    bool readable, file;
  };
  bool reserve(uint64_t bytes, Workspace& space, AddrRange block = {});
  long touch(uint64_t bytes) const;
  Result<void> take(const Piece& piece, bool read, StillMemory& memory);

  Arena arena_;
  AddrRange room_{};  // what was reserved ahead of the pause: arena_ has other memory if that was not enough
  ArenaVector<AddrRange> runs_;
  ArenaVector<CopiedSegment> copied_;
};

}  // namespace ckpt
