// Which system calls of this process are forbidden, and which it has made that a checkpoint has to know of.
//
// Owner:     libckpt_rt: one object in its data.
// Callers:   the agent reads. The thread of the program that forbids itself its calls writes strict_thread
//            (hooks::begin_strict); the thread that makes such a call writes what else is atomic here; the
//            preload constructor and the leader of a restart write before_program.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt {

struct SeccompState {
  // A thread has forbidden itself system calls that a stop needs.
  std::atomic<bool> strict_thread{false};
  // A thread has set a filter for itself or for all, or is about to.
  std::atomic<bool> filtered{false};
  // Filters that were there before the program's first instruction.
  uint32_t before_program = 0;
  // A keyring of its own (keyctl, add_key), and CLONE_NEW* of what it has left by unshare(2) and setns(2); a
  // forked child has it too. Not any more after a restart.
  std::atomic<bool> own_keyring{false};
  std::atomic<bool> session_keys{
      false};  // it has put keys into the keyring of its session; the same of children
  std::atomic<bool> landlocked{
      false};  // landlock_restrict_self(2), which a child inherits; nobody else is told of it
  std::atomic<int> left_namespaces{0};
  std::atomic<bool> queue_notice{false};  // mq_notify was called
  // A thread has made a child with memory of its own for which it waits in the kernel (CLONE_VFORK).
  std::atomic<bool> waits_for_child{false};
  std::atomic<bool> waits_by_thread{false};  // a thread has waited for its own children alone (__WNOTHREAD)
};

extern SeccompState seccomp_state;

}  // namespace ckpt
