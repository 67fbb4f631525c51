// How an attempt gets hold of memory: one class a back end. The only place where they differ.
//
//   HandlerBackEnd     userfaultfd, faults served by a thread of ours; realtime,
//                      realtime-large and standing
//   InThreadBackEnd    faults handled by the thread that writes, under the guard (GuardBackEnd)
//   MprotectBackEnd    the same, by mprotect(2)
//   SequentialBackEnd  all is written while threads stand
//   ConcurrentBackEnd  all is copied while threads stand, and written afterwards
//   ForkBackEnd        fork(2); the child writes
//
// Which one, choose.cc says; nothing else branches on the mode.
//
// Owner:     run_stages() (attempt.h), which calls these in the order in which they stand here. Callers: the
//            agent.
#pragma once

#include "base/result.h"
#include "libckpt_rt/checkpoint/stages/memory/memory_size.h"

namespace ckpt {

struct ThreadSlot;

class BackEnd {
 public:
  struct Room {
    MemorySize memory;
    uint64_t list_bytes;  // for lists of pages and the table of segments
  };

  // --- the program runs ---
  // Buffers.
  virtual Result<void> reserve(const Room& room) = 0;
  // The image has a name: creates its file, unless somebody else will.
  virtual Result<void> open_image() = 0;
  // Opens what protects memory.
  virtual Result<void> open(const Room&) { return {}; }
  // After open(): why images cannot be increments; nullptr: they can.
  virtual const char* why_no_increments() const { return "this mode protects no memory"; }
  // Are memory copies made one by one, in an order that can be chosen, by an engine that can be chosen?
  virtual bool copies_in_order() const { return false; }
  // A forked child needs the lists and the sink's memory; else children do not get them.
  virtual bool writes_in_child() const { return false; }
  // Adds memory of its own to the workspace's list.
  virtual void add_own_ranges() = 0;
  // The mappings have been read. The stop comes next.
  virtual Result<void> get_ready() = 0;

  // --- the stop ---
  // Is catch_up() to be called when some threads stand and the others still run?
  virtual bool protects_ahead() const { return false; }
  virtual Result<void> catch_up() { return {}; }
  // Can it tell afterwards that a thread was sent a signal while it stood? If not, all are looked at.
  virtual bool finds_late_signals() const { return false; }
  // Threads stand, and go on at once, because one is in its critical section; then they are stopped again.
  // False: without catch_up().
  virtual bool stood_in_vain(ThreadSlot*) { return true; }
  // Threads stand: the image's instant.
  virtual void threads_stand(ThreadSlot*) {}
  // The kernel has been asked all. Protects or copies.
  virtual Result<void> capture_memory() = 0;

  // --- the program runs on, by Stop::go() ---
  virtual Result<void> finish() = 0;

  // --- the end, also after a failure of any of the above ---
  // While threads may still stand: threads that wait in a fault go on, and no thread is under guard.
  virtual void release_faults() {}
  // Threads run: its own threads end, and all protection that is not kept.
  virtual void end() {}
  // The sink holds none of its buffers any more.
  virtual void release_buffers() {}

 protected:
  ~BackEnd() = default;
};

}  // namespace ckpt
