// Memory of the program at its own addresses, while nobody can change it: in the stop, or in a forked child.
//
// Owner:     one attempt (ProcessCapture). Callers: the agent, or the child of mode fork.
#pragma once

#include <sys/uio.h>

#include <span>

#include "base/raii_fd.h"
#include "base/result.h"
#include "copier/copier.h"

namespace ckpt {

class StillMemory final : public ProgramMemory {
 public:
  Result<void> open();
  long read(std::byte* to, Addr from, size_t bytes, bool readable) override;
  // Readable memory piece by piece, by one call for all: a third of the price of one for each. Returns how
  // many pieces were read whole, from the first on; the next one needs a look at it alone.
  size_t read_many(std::span<const iovec> to, std::span<const iovec> from) const;
  long unprotect(AddrRange) override { return 0; }
  void wake(AddrRange) override {}

 private:
  // By which call, and why: kernel_copy.h.
  long copy(std::span<const iovec> to, std::span<const iovec> from) const;
  ScopedFd memory_file_;
  bool own_side_ = false;
};

}  // namespace ckpt
