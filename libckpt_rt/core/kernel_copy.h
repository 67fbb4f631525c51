// Copies of the program's memory, made by the kernel: where a thread would get a signal, a copy fails.
//
// Two calls make them. process_vm_readv(2) looks up each page of the program; process_vm_writev(2), for which
// the program's memory is the caller's own side, each page of the buffer, and costs a third less where many
// of those are one huge page.
//
// Owner:     WriteProtection, GuardedMemory.
// Callers:   use_for(): the agent, while nobody copies. copy(): any copying thread.
// Never:     allocates, locks, or touches the memory itself.
#pragma once

#include <cstddef>

#include "base/units.h"

namespace ckpt {

class KernelCopy {
 public:
  // buffers: those that lie in huge pages; none where the second call is not to be made.
  void use_for(AddrRange buffers) { huge_ = buffers; }
  // False: not all of it is there, or may be read. What `to` holds is void then.
  [[nodiscard]] bool copy(std::byte* to, Addr from, size_t bytes) const;
  // The same without the second call, also for threads of the program: they may have been forbidden it.
  [[nodiscard]] static bool read(std::byte* to, Addr from, size_t bytes);

 private:
  AddrRange huge_{};
};

}  // namespace ckpt
