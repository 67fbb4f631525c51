// Which process this is, and which run of the program.
//
// Owner:     libckpt_rt: one object in its data, so that an image holds it and a restarted process continues
//            from it.
// Callers:   any thread reads. Written by the preload constructor, while one thread runs; in a child of the
//            program by the thread that puts it right (child.h); at a restart and after going back by the one
//            thread that runs then (generation).
// Never:     copied lazily: it is saved in the pause (capture/memory/memory_map.cc).
#pragma once

#include <cstdint>

namespace ckpt {

struct ThisProcess {
  bool active = false;      // preloaded, set up, not disabled
  int pid = 0;              // of the process that set it up; differs in a child that libc did not fork
  char name[16] = {};       // of the program, for image names
  uint8_t run_id[16] = {};  // images of one timeline have the same; random, then the job's (kRunIdOfJob)
  uint32_t generation = 0;  // restarts this process has behind it
};

extern ThisProcess this_process;

// A timeline of its own begins. job: the 16 bytes of its job's id.
void new_run_id(const uint8_t* job);

}  // namespace ckpt
