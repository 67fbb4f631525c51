// Which system calls of this process are forbidden: what a checkpoint has to know of it.
//
// Owner:     libckpt_rt: one object in its data.
// Callers:   the agent reads. strict_thread is written by the thread of the program that forbids itself its calls
//            (hooks::begin_strict); before_program by the preload constructor and by the leader of a restart.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt {

struct SeccompState {
  // A thread has forbidden itself system calls that a stop needs.
  std::atomic<bool> strict_thread{false};
  // Filters that were there before the program's first instruction.
  uint32_t before_program = 0;
};

extern SeccompState seccomp_state;

}  // namespace ckpt
