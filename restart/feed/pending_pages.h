// The pages of one address space that wait for their contents, and which contents: saved memory is known
// by the address it had at the checkpoint, and the program may move what it has not touched yet.
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
    Addr address;  // where it is now
    Addr saved;    // where it was
    uint64_t length;
  };

  void add(AddrRange range);  // where it was; in address order
  // Loaded, or given back by the program: nothing waits there any more.
  void remove(AddrRange range);
  // mremap(2): what waits in `from` waits at `to` instead, and nothing else there.
  void move(AddrRange from, Addr to);

  bool empty() const { return home_.empty() && moved_.empty(); }
  std::optional<Addr> saved_address(Addr page) const;
  // Where the pages that were in `saved` wait, if they do.
  std::vector<Part> parts_of(AddrRange saved) const;

 private:
  struct Run {
    Addr end, saved;
  };
  using Runs = std::map<Addr, Run>;
  static void cut(Runs& runs, AddrRange range, std::vector<Part>* out);

  Runs home_;   // at their old address
  Runs moved_;  // elsewhere: few
};

}  // namespace ckpt
