// Waits until each host of a crew has said what is awaited of it.
//
// Owner: cli, the head. One thread. Callers: moves and restarts.
// Never: loses a message: what nobody awaits goes to CrewHost::early.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/hosts/crew/crew.h"

namespace ckpt::cli {

struct AwaitedWord {
  std::string say = {};   // "": nothing is awaited of this host
  std::string step = {};  // "": any
  uint64_t id = 0;        // 0: any
  bool may_end =
      false;  // its processes are being ended: that they have ended, or could not do what they were about, is
              // no error
};

struct HearEach {
  Crew& crew;
  int64_t patience_ns;
  std::function<Result<void>()> meanwhile = {};  // called again and again; its error ends the wait
  int failed_host = -1;                          // after an error: whose it was; -1: nobody's

  // A message of each host; null of one of which nothing is awaited. Errors: a host goes meanwhile, also one
  // that has said its word; one says nothing in time, or that it failed.
  Result<std::vector<Json>> hear(const std::vector<AwaitedWord>& awaited);

 private:
  Result<void> take(int host, Json said, const AwaitedWord& awaited, Json& wanted,
                    std::vector<Json>& others) const;
};

}  // namespace ckpt::cli
