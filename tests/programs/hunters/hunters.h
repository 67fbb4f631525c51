// Torn-snapshot hunters: threads that keep invariants between pages at full speed. An image whose
// pages are from two different instants breaks at least one of them soon after restart.
//
// Owner: tests/programs/hunters. Each function is one exercise and returns its result line.
#pragma once

#include "tests/programs/victim.h"

namespace hunters {

// Every page holds the number of the step that wrote it last; the thread knows which that was.
std::string sweep(uint64_t iterations);
// A sequence lock whose words lie on different pages, one writer, two readers.
std::string seqlock(uint64_t iterations);
// Nodes, one a page, wander between lock-free stacks; each is in exactly one place.
std::string stacks(uint64_t iterations);
// A single-producer single-consumer ring; messages arrive complete, in order, once.
std::string ring(uint64_t iterations);
// Money moves between accounts on thousands of pages; the total stays.
std::string accounts(uint64_t iterations);
// Counters in private memory, shared anonymous memory and a memfd mapped twice advance together.
std::string shared(uint64_t iterations);
// Sums over pages that hold whenever the mutex is free.
std::string locked(uint64_t iterations);

}  // namespace hunters
