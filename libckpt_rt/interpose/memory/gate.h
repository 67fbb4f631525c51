// A gate that holds back calls which change mappings, while the agent reads the list of mappings and
// registers them with userfaultfd. Why: the program may unmap a range that was read, and map it again in
// other pieces. To register the range would cut one of the new mappings in two: mremap(2) then fails with
// EFAULT, and the halves, once touched, are never joined again.
//
// Owner:     libckpt_rt/interpose. In the library's own data: in a restarted process the threads that were
//            inside still are.
// Callers:   MappingChange: threads of the program, around munmap, mremap, brk, mprotect, pkey_mprotect,
//            remap_file_pages, shmdt, mmap with MAP_FIXED and shmat with SHM_REMAP; while memory is
//            registered, also around madvise and process_madvise that drop pages.
//            MappingsHeld: the agent. MappingsBarred: the thread that serves faults.
// Never:     waits for ever: a thread that left a wrapper by siglongjmp, or a signal handler that unmaps
//            memory in the middle of one, must not block the program. After kPatienceNs the agent goes on
//            without the gate.
#pragma once

#include "base/locks/futex.h"

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
  // True: no thread is inside. False: the wait was given up.
  bool sure() const { return sure_; }
  ~MappingsHeld();
  MappingsHeld(const MappingsHeld&) = delete;
  MappingsHeld& operator=(const MappingsHeld&) = delete;

 private:
  bool sure_ = false;
};

// Lets no thread in any more, but does not wait for those inside. For write_protect.cc: while threads give
// memory back without pause the kernel refuses to change protection (EAGAIN). One object at a time.
class MappingsBarred {
 public:
  MappingsBarred();
  ~MappingsBarred();
  MappingsBarred(const MappingsBarred&) = delete;
  MappingsBarred& operator=(const MappingsBarred&) = delete;
};

// In a forked child no thread is inside, and nobody holds the gate. At a restart nobody holds it.
void reset_gate_in_child();
void reset_gate_after_restart();

}  // namespace ckpt
