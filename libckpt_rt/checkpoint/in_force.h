// What is in force in a checkpoint, where that may differ from what the user has set
// (core/settings/user_settings.h): sizes that were chosen, and settings that this mode, this kernel or this
// program cannot serve.
//
// Owner:     an attempt has its own; what the newest had is kept for `ckpt stat`, in the library's data, with
//            the size of segments with which the next one begins. An image holds both.
// Callers:   the agent.
#pragma once

#include "base/settings/settings.h"
#include "libckpt_rt/checkpoint/checkpoint.h"

namespace ckpt {

// Of one attempt. Its mode and back end are those of its CheckpointMethod.
struct InForce {
  uint64_t segment_bytes = 0;  // 0: not chosen yet
  uint64_t pool_bytes = 0;     // 0: the back end has no pool
  bool increments = false;     // are wanted, and can be had: the watch is kept if all goes well
  bool in_order = false;       // memory is copied in an order, by an engine, that can be chosen
  bool engine = false;         // the emulated device is what copies
  bool files = false;          // open files are kept beside the image
};

namespace in_force {

struct Known {
  InForce newest;
  uint64_t next_segment_bytes = 0;  // of CKPT_SEGMENT=auto; 0: as set
};

// The size with which the next attempt begins.
uint64_t next_segment();
void set_next_segment(uint64_t bytes);
void remember(const InForce& attempt);

// The settings as they hold now, with this method: what was found in the newest attempt, and what is known
// before.
Settings now(const CheckpointMethod& method);

// Going back: what is known is of now, not of the checkpoint.
const Known& all();
void put_back(const Known& all);
// A forked child has taken no checkpoint yet.
void reset_in_child();

}  // namespace in_force
}  // namespace ckpt
