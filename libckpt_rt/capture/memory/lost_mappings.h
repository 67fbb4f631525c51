// Mappings that no restart can make again: said when the checkpoint is taken, not when it is needed.
//
// Owner:     libckpt_rt. Callers: the agent, threads standing.
// Never:     touches the memory.
#pragma once

#include <string_view>

#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt {

// Flags of mappings that are in no image, beside kMap*.
enum LostMappingFlag : uint32_t {
  kMapOfMemfd = 1u << 27,  // a private view of a memfd that is not mapped again (memfd_views.h)
  kMapSealed = 1u << 28,   // mseal(2): comes back by memory_settings.h
  kMapUnsure = 1u << 29,   // MAP_DROPPABLE before the stop, and perhaps still (droppable_maps.h)
  kMapGuarded = 1u << 30,  // MADV_GUARD_INSTALL, somewhere in it: comes back by memory_settings.h
  kMapOnlySaid = kMapOfMemfd | kMapSealed | kMapUnsure | kMapGuarded,
};

struct LostMapping {
  const char* what = nullptr;  // nullptr: it comes back
  const char* why = nullptr;
  bool forbids_restart = true;  // else the program runs without what was in it
};

LostMapping what_is_lost(const Mapping& m);

}  // namespace ckpt
