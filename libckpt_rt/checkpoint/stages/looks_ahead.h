// What takes time to look at and hardly ever changes. It is looked at ahead of the stop and again after it:
// if both looks agree, it was so in the stop as well, which need not look. Else the attempt is taken again,
// and from then on the stop of this process looks itself.
//   - Which pages of a private mapping of a file, that may not be written to, differ from the file: relocated
//     data of libraries, code with breakpoints. Their content is read in the stop. A page that has been
//     changed stays so, therefore what was written to in between, by whatever call, is found by the second
//     look.
//   - mlockall(MCL_FUTURE), which only a new mapping shows. What is switched on and off again between the two
//     looks is not seen; it has no trace in memory either.
//
// Owner:     one Attempt, in its capture. Callers: the agent. look() ahead of the stop, agrees() when the
//            threads run again, the others in between.
// Measured:  docs/findings.md, "What was tried for the stop".
#pragma once

#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/memory/page_scan.h"
#include "libckpt_rt/capture/process_state.h"

namespace ckpt {

class LooksAhead {
 public:
  // Without memory for the lists, or after looks that did not agree, nothing is known.
  void look(const MemoryMap& map, PageScan& pages, Arena& arena);
  // Appends the pages of m; false: not known.
  Result<bool> list_pages(const Mapping& m, ArenaVector<AddrRange>& runs) const;
  // What process_state.h calls future_locks; kLocksUnknown: not known.
  int future_locks() const { return future_locks_; }
  // Once.
  bool agrees(PageScan& pages, Arena& arena);

 private:
  struct Looked {
    Mapping mapping;
    size_t first, last;  // in runs_
  };
  void forget();

  ArenaVector<Looked> looked_;  // in address order
  ArenaVector<AddrRange> runs_;
  int future_locks_ = kLocksUnknown;
};

}  // namespace ckpt
