// What the PMIx servers of a step's nodes say to each other, through the launcher: the bytes of a frame
// kPmix.
//
// Owner:     cluster/srun/pmix. Both ends, one thread each.
// Callers:   PmixHost on each node, PmixRouter in the launcher.
// Never:     looks into what PMIx itself has packed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt::cluster::srun {

// PMIX_ERR_NOT_FOUND, for what nobody can answer.
inline constexpr int kPmixNotFound = -46;

struct PmixMessage {
  enum class What : char {
    kFence = 'f',     // a node's ranks of `ranks` have come to it, with `data`
    kFenced = 'F',    // the answer: all have, `data` of all nodes
    kAsk = 'a',       // for what rank `rank` has put
    kAnswer = 'A',    // the answer
    kBegan = 'b',     // rank `rank` is in PMIx
    kFinished = 'e',  // rank `rank` has done with it
    kAbort = 'x',     // rank `rank` ends the step, with `status` and words in `data`
  };
  What what = What::kFence;
  std::string ranks;  // "0,1,2"; "": all of the step. Sorted
  uint64_t id = 0;    // of the question, for its answer
  int node = -1;      // that has asked
  int rank = -1;
  int status = 0;  // of PMIx, or of the program
  std::string data;
};

std::string write_message(const PmixMessage& message);
// False: it is none.
bool read_message(std::string_view bytes, PmixMessage& message);

}  // namespace ckpt::cluster::srun
