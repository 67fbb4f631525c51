// The interface of copy engines, which copy program memory into a buffer: the CPU at once, or a device that
// works through a queue on its own (dma_copy_engine.h).
//
// Owner:     copier. One engine serves one checkpoint at a time, or many (multiprogrammed: docs/timewarp.md).
// Callers:   submit(): any copying thread. resync(): a thread that needs one of the copies now.
//            CopyListener::copied(): called by the engine, on its thread or within submit().
// Never:     allocates, takes a lock of libc, touches the program's memory but through SourceMemory.
//
// Every accepted copy is completed exactly once: the engine calls copied(), or one resync() returns
// kCommitted, kAborted or kFailed to its caller, which then does what copied() would have done. A resync()
// that returns kDone leaves the copy to copied(), which may still be running on another thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/memory/page_runs.h"
#include "base/units.h"

namespace ckpt {

// Where copies come from. May be called from several threads at a time.
class SourceMemory {
 public:
  // Copies [from, from + bytes) to `to`. 0 or -errno: -EFAULT when the memory is not there. readable: its
  // mapping has PROT_READ.
  virtual long read(std::byte* to, Addr from, size_t bytes, bool readable) = 0;

 protected:
  ~SourceMemory() = default;
};

// Page i of the source (4 KiB each, the last may be shorter) goes to to + i * kPageSize if bit i of
// `pages` is set.
struct CopyRequest {
  uint64_t cookie;  // for the listener; means nothing to the engine
  Addr from;
  std::byte* to;
  uint32_t bytes;  // more than 0, at most 64 pages
  uint64_t pages;
  bool readable;
};

// Forced copies overtake sequential ones.
enum class CopyPriority : uint32_t { kForced = 0, kSequential = 1 };

struct CopyTicket {
  uint64_t value = 0;
};

enum class Resync {
  kDone,       // the copy is complete or has failed: copied() was called, or is about to be
  kCommitted,  // the copy had reached the threshold; resync() has finished it: the bytes are in the buffer
  kAborted,    // it had not: the engine touches source and buffer no more; the bytes in the buffer are void
  kFailed,     // resync() could not finish the copy: the memory is not there
};

class CopyListener {
 public:
  // result: 0, or -errno of SourceMemory::read.
  virtual void copied(uint64_t cookie, long result) = 0;

 protected:
  ~CopyListener() = default;
};

class CopyEngine {
 public:
  // False: the queue is full, nothing was accepted; copy by other means, or later.
  [[nodiscard]] virtual bool submit(const CopyRequest& request, CopyPriority priority,
                                    CopyTicket* ticket) = 0;
  // Settles one copy now and leaves all others alone. Aborts it when less than `threshold` percent of
  // it is done, else finishes it: 0 never aborts, 101 always does.
  [[nodiscard]] virtual Resync resync(CopyTicket ticket, uint32_t threshold) = 0;

 protected:
  ~CopyEngine() = default;
};

// Calls copy(offset, bytes) for each run of pages; stops at the first result that is not 0.
template <typename Copy>
long for_each_run(const CopyRequest& request, Copy copy) {
  const uint64_t within = first_pages((request.bytes + kPageSize - 1) / kPageSize);
  for (PageRun run : PageRuns(request.pages & within)) {
    const uint64_t bytes = std::min(run.bytes(), request.bytes - run.offset());
    if (long result = copy(run.offset(), bytes); result != 0) return result;
  }
  return 0;
}

// The caller's own CPU: done when submit() returns.
class CpuCopyEngine final : public CopyEngine {
 public:
  CpuCopyEngine(SourceMemory& memory, CopyListener& listener) : memory_(memory), listener_(listener) {}

  [[nodiscard]] bool submit(const CopyRequest& request, CopyPriority, CopyTicket* ticket) override {
    *ticket = {};
    listener_.copied(request.cookie, for_each_run(request, [&](uint64_t offset, uint64_t bytes) {
                       return memory_.read(request.to + offset, request.from + offset, bytes,
                                           request.readable);
                     }));
    return true;
  }
  [[nodiscard]] Resync resync(CopyTicket, uint32_t) override { return Resync::kDone; }

 private:
  SourceMemory& memory_;
  CopyListener& listener_;
};

}  // namespace ckpt
