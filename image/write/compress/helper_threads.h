// Threads that a DirectSink may have beside its own, for compression. The opener of the sink says how they
// are made: in the victim they are not libc's.
//
// Owner:     the opener of the sink; they outlive the sink. Callers: the sink's thread.
#pragma once

#include <cstdint>

namespace ckpt {

class HelperThreads {
 public:
  // How many there can be: no more than it makes sense to run beside the writer.
  virtual uint32_t most() const = 0;
  // One more thread runs fn(arg). False: it cannot be had.
  virtual bool start(void (*fn)(void*), void* arg) = 0;
  // Until all that were started have returned from fn and are gone.
  virtual void join() = 0;

 protected:
  ~HelperThreads() = default;
};

}  // namespace ckpt
