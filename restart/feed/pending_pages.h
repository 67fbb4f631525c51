// The pages of one address space that wait for their contents, and which contents that are. Saved memory is
// named by the address that it had at the checkpoint; the program may have moved pages before it touches
// them.
//
// Owner:     restart. Callers: the loader, under its lock; tests.
// Never:     calls the kernel.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/units.h"

namespace ckpt {

class PendingPages {
 public:
  struct Part {
    Addr address;  // where the pages are now
    Addr saved;    // where they were at the checkpoint
    uint64_t length;
  };

  void add(AddrRange range);  // as at the checkpoint; calls in address order
  // The pages were loaded, or given back by the program: nothing waits in `range` any more.
  void remove(AddrRange range);
  // mremap(2): what waits in `from` now waits at `to`; what waited there does not any more.
  void move(AddrRange from, Addr to);

  bool empty() const { return home_.empty() && moved_.empty(); }
  // Which saved page waits at `page`; nothing: none.
  std::optional<Addr> saved_address(Addr page) const;
  // Where the pages wait that were in `saved` at the checkpoint.
  std::vector<Part> parts_of(AddrRange saved) const;

 private:
  struct Run {
    Addr end, saved;
  };
  using Runs = std::map<Addr, Run>;
  static void cut(Runs& runs, AddrRange range, std::vector<Part>* out);

  Runs home_;   // pages at the address that they had at the checkpoint
  Runs moved_;  // pages elsewhere: few
};

}  // namespace ckpt
