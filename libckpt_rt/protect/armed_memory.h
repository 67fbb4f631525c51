// What protection ahead of the stop (arming.h) needs of whatever protects memory.
//
// Owner:     libckpt_rt. It is a WriteProtection, whose faults a thread of ours serves, or a GuardedMemory,
//            whose faults are handled by the threads that write.
// Callers:   Arming.
#pragma once

#include <cstddef>

#include "base/units.h"

namespace ckpt {

class ArmedMemory {
 public:
  // -EINVAL, -EBUSY: the kernel cannot protect this mapping. Adding again what is added is fine.
  virtual long add(AddrRange range) = 0;
  virtual long protect(AddrRange range) = 0;
  virtual long unprotect(AddrRange range) = 0;
  virtual void wake(AddrRange range) = 0;
  // With the lock held: serves the threads that wait now, not those that wait again afterwards.
  virtual void serve_waiting() = 0;
  // How many segments are protected between two calls of serve_waiting().
  virtual size_t batch() const = 0;
  // Does the kernel wait for faults that it takes on the program's behalf? If not, a segment that is
  // kUnsettled must not be protected.
  virtual bool kernel_waits() const = 0;
  // With the lock held: calls visit(context, range) for all that the kernel may write to now, where it cannot
  // wait for a fault.
  virtual void each_busy(void (*visit)(void* context, AddrRange range), void* context) = 0;

  // The lock, with everything served that is queued. kOnce: only the threads that wait now; where threads
  // fault as fast as they are served, kAll would have no end.
  enum class Served { kAll, kOnce };
  class Serving {
   public:
    explicit Serving(ArmedMemory& memory, Served served = Served::kAll) : memory_(memory) {
      memory_.begin_serving(served);
    }
    ~Serving() { memory_.end_serving(); }
    Serving(const Serving&) = delete;
    Serving& operator=(const Serving&) = delete;

   private:
    ArmedMemory& memory_;
  };

 protected:
  virtual void begin_serving(Served served) = 0;
  virtual void end_serving() = 0;
  ~ArmedMemory() = default;
};

}  // namespace ckpt
