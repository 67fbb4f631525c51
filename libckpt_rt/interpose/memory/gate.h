// A gate that holds back what takes mappings away, while the agent reads the list of mappings and registers
// them with userfaultfd. A range that was read and then unmapped and mapped again in other pieces would be
// registered across them and cut a mapping of the program in two: mremap(2) then fails with EFAULT, and the
// halves, once touched, are never joined again.
//
// Owner:     interposition. In the library's own data: a restarted process finds its threads inside as they
// were. Callers:   MappingChange: threads of the program, around munmap, mremap, brk, mprotect, MAP_FIXED,
// and madvise where memory is registered. MappingsHeld: the agent. Never:     waits for ever: a thread that
// left a wrapper by siglongjmp, or a signal handler that unmaps
//            memory in the middle of one, must not stop the program. After kPatienceNs the agent goes
//            without.
#pragma once

#include "base/futex.h"

namespace ckpt {

class MappingChange {
 public:
  MappingChange() { enter(); }
  ~MappingChange() { leave(); }
  MappingChange(const MappingChange&) = delete;
  MappingChange& operator=(const MappingChange&) = delete;

 private:
  static void enter();
  static void leave();
};

class MappingsHeld {
 public:
  static constexpr int64_t kPatienceNs = 100'000'000;
  MappingsHeld();
  // No thread is inside.
  bool sure() const { return sure_; }
  ~MappingsHeld();
  MappingsHeld(const MappingsHeld&) = delete;
  MappingsHeld& operator=(const MappingsHeld&) = delete;

 private:
  bool sure_ = false;
};

// Lets nobody in any more, and waits for nobody: while threads give memory back without rest the kernel
// changes no protection. For who serves, one at a time.
class MappingsBarred {
 public:
  MappingsBarred();
  ~MappingsBarred();
  MappingsBarred(const MappingsBarred&) = delete;
  MappingsBarred& operator=(const MappingsBarred&) = delete;
};

// In a forked child nobody is inside. At restart nobody holds.
void reset_gate_in_child();
void reset_gate_after_restart();

}  // namespace ckpt
