// bubblesort: sorts records by exchanging neighbours, as slowly and with as many writes as that takes.
//
// One block a thread. First every thread bubbles its own block; then, in as many phases as there are
// blocks, neighbouring blocks are bubbled together, first the pairs (0,1) (2,3) …, then (1,2) (3,4) ….
// After that many phases all is in order (odd-even transposition of blocks).
#include <algorithm>

#include "bench/mergesort/records.h"

namespace bench {
namespace {

struct Arguments {
  uint64_t records = 100000;
  uint64_t record_size = 64;  // bytes
};

void exchange(std::byte* a, std::byte* b, uint64_t size) { std::swap_ranges(a, a + size, b); }

// Bubbles [first, last) until nothing is exchanged any more.
void bubble(RecordArray& records, uint64_t first, uint64_t last) {
  const uint64_t size = records.record_size();
  while (last - first > 1) {
    uint64_t last_exchange = first;
    for (uint64_t i = first + 1; i < last; ++i) {
      if (RecordArray::before(records.at(i), records.at(i - 1))) {
        exchange(records.at(i), records.at(i - 1), size);
        last_exchange = i;
      }
    }
    last = std::max(last_exchange, first);
  }
}

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  RecordArray records(arguments.records, arguments.record_size);
  for (uint64_t i = 0; i < records.count(); ++i) records.fill(i, i, common.seed);
  unsigned blocks = static_cast<unsigned>(std::min<uint64_t>(common.threads, records.count()));
  auto block = [&](unsigned b) { return share_of(records.count(), b, blocks); };
  run_threads(blocks, [&](unsigned t) { bubble(records, block(t).first, block(t).last); });
  for (unsigned phase = 0; phase < blocks; ++phase) {
    unsigned first = phase % 2;
    unsigned pairs = (blocks - first) / 2;
    if (pairs == 0) continue;
    run_threads(pairs, [&](unsigned t) {
      unsigned b = first + 2 * t;
      bubble(records, block(b).first, block(b + 1).last);
    });
  }
  std::string fault = first_fault(records, common.seed, 1);
  Checksum sum;
  sum.add(records.at(0), records.count() * records.record_size());
  results.add("records", records.count());
  results.add("record_size", records.record_size());
  results.add("checksum", sum.hex());
  results.add("result", fault.empty() ? "sorted ok" : "wrong: " + fault);
  return fault.empty() ? kExitOk : kExitWrongResult;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments arguments;
  bench::Program program;
  program.name = "bubblesort";
  program.description = "Sorts pseudo-random records in memory by a parallel bubble sort.";
  program.configure = [&](bench::CommandLine& line) {
    line.size("-n,--records", arguments.records, "Number of records");
    line.size("--record-size", arguments.record_size, "Bytes of a record, a multiple of 8");
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
