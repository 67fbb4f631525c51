// Copies of the program's memory, made by the kernel: where a thread would get a signal, a copy fails.
//
// Two calls make them. process_vm_writev(2), for which the program's memory is the caller's own side, looks
// up each page of the buffer, and costs a third less where many of those are one huge page.
// process_vm_readv(2) looks up each page of the program, and pins it: since Linux 5.19 a page that the
// program shares with a child, copy-on-write, becomes its own by that (FAULT_FLAG_UNSHARE), as if it had been
// written to.
//
// Owner:     WriteProtection, GuardedMemory.
// Callers:   use_for(): the agent, while no thread copies. copy(): any copying thread.
// Never:     allocates, locks, or touches the memory itself.
#pragma once

#include <cstddef>
#include <span>

#include "base/memory/copy_piece.h"
#include "base/units.h"

namespace ckpt {

class KernelCopy {
 public:
  // buffers: those into which the first call copies; none where it is not to be made, for a filter may forbid
  // it.
  void use_for(AddrRange buffers) { buffers_ = buffers; }
  // False: not all of it is there, or may be read. What `to` holds is void then.
  [[nodiscard]] bool copy(std::byte* to, Addr from, size_t bytes) const;
  // The same of several pieces by one call, each of a buffer: false also where that call is not to be made.
  [[nodiscard]] bool copy(std::span<const CopyPiece> pieces) const;
  // The same without the first call, also for threads of the program: they may have been forbidden it.
  [[nodiscard]] static bool read(std::byte* to, Addr from, size_t bytes);

 private:
  AddrRange buffers_{};
};

}  // namespace ckpt
