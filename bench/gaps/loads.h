// What the threads of gaps do between two looks at the clock.
//
//   idle     nothing: the memory is there and nobody touches it
//   page     one word of a random page of the thread's own share
//   uniform  one word at a random place of the whole memory, which all threads share: the worst case
//   server   a request to a table of 64-byte entries as large as the memory: 90 % read, 10 % write; a few
//            entries are asked for much more often than the rest, and lie scattered over the table
//   sort     64 records of a merge sort of the thread's own share
//
// Owner:     bench/gaps.
// Callers:   run_load(): each working thread, when all of them have touched their memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "bench/gaps/recorder.h"

namespace bench {

enum class Load { kIdle, kPage, kUniform, kServer, kSort };

// `memory` is everybody's; thread number `thread` of `threads`. Returns when the recorder says so.
void run_load(Load load, std::span<uint64_t> memory, unsigned thread, unsigned threads, uint64_t seed,
              Recorder& recorder);

}  // namespace bench
