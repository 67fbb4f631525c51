// Memory that other processes map as well: what the copier asks before it takes the protection off a segment
// of it, and by what it reads such a segment. Implemented by SharedLedger.
//
// Owner:     copier. Callers: the agent, the thread that serves faults, threads of the program that fork.
#pragma once

#include "base/units.h"

namespace ckpt {

class SharedSource {
 public:
  // Copies the window, at most 64 pages, as it was at the stop. False: it cannot be read.
  virtual bool read(std::byte* to, AddrRange window) = 0;
  // Before this process may write there: the bytes of the stop are kept for the others.
  virtual void save_for_others(AddrRange range) = 0;
  // This process has copied all of its shared memory. Once.
  virtual void copied() = 0;
  // Do others still read?
  virtual bool needed() const = 0;
  // The memory may have been written to unseen: no image of this checkpoint is good.
  virtual void give_up() = 0;

 protected:
  ~SharedSource() = default;
};

}  // namespace ckpt
