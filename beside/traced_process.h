// A process that has just executed a program, held by ptrace(2) before the program's first instruction: makes
// system calls in it, reads and writes its memory, lets it run to a trap.
//
// Owner:     beside. One thread, the tracer: ptrace(2) knows it by that.
// Never:     changes the program's own bytes: system calls are made by an instruction that its text has.
#pragma once

#include <sys/user.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "base/result.h"

namespace ckpt::beside {

class TracedProcess {
 public:
  explicit TracedProcess(int pid) : pid_(pid) {}

  // The process goes on until it executes a program. If this process ends before detach(), however it ends,
  // that one is killed.
  Result<void> seize();
  // Behind that: all signals are blocked, and its state is remembered for detach(). False: the process ended,
  // since it could not execute one.
  Result<bool> await_program();
  // open: signals that the program is not to begin with blocked. A stop that came meanwhile comes now. Where
  // this process, the tracer, is by now a child of that one, the latter waits for its end before it begins.
  Result<void> detach(uint64_t open);
  // In place of detach(): the program ends, and has done nothing.
  void end(int exit_code);

  const user_regs_struct& at_entry() const { return entry_; }
  // -errno, or the result.
  Result<long> call(long number, std::initializer_list<uint64_t> arguments);
  Result<void> read(uint64_t at, std::span<std::byte> bytes) const;
  Result<void> write(uint64_t at, std::span<const std::byte> bytes) const;
  // Until the first trap (int3): what is in its first argument's register then. In that of the second: where
  // it has begin_behind_tracer().
  Result<uint64_t> run(uint64_t instruction, uint64_t stack);

 private:
  Result<int> await_stop();
  Result<void> resume(int request, const char* what);
  Result<void> find_instruction();
  bool is_continued() const;
  Result<void> set_as_at_entry(uint64_t mask);
  Result<void> set_to_begin_itself(uint64_t mask);
  Error failed(const char* what) const;

  int pid_;
  uint64_t mask_ = 0, instruction_ = 0;
  bool stopped_ = false;                  // by a SIGSTOP that came meanwhile
  user_regs_struct entry_{}, trapped_{};  // trapped_: behind run()
  std::vector<std::byte> vector_registers_;
};

}  // namespace ckpt::beside
