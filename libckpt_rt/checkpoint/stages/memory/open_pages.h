// Pages that are copied in the pause and not protected, because the kernel or a stopped thread writes to them
// before all is copied, or without a fault: stacks that threads stand on, futexes of the kernel
// (futex_words.h), rseq areas, buffers that are registered with rings of io_uring.
//
// Owner:     one attempt of a back end that protects memory. Callers: the agent, in the stop.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/units.h"

namespace ckpt {

class StillMemory;
struct ThreadSlot;

class OpenPages {
 public:
  void make_list(Arena& arena) { pages_ = ArenaVector<Addr>(arena); }
  // False: no room in the list.
  [[nodiscard]] bool collect(const ThreadSlot* stopped, StillMemory& memory);
  // In address order, each once.
  void sort();
  std::span<const Addr> span() const { return pages_.span(); }

 private:
  [[nodiscard]] bool add_stacks(const ThreadSlot* stopped);
  [[nodiscard]] bool add_rseq(const ThreadSlot* stopped);

  ArenaVector<Addr> pages_;
};

}  // namespace ckpt
