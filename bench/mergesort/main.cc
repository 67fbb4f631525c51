// mergesort: sorts records in memory with several threads, as in the paper's first experiment.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bench/mergesort/parallel_merge_sort.h"

namespace bench {
namespace {

struct Arguments {
  uint64_t size = uint64_t{1} << 30;  // bytes of all records
  uint64_t records = 0;               // 0: as many as fit into size
  uint64_t record_size = 128;         // bytes
  uint64_t rounds = 8;
  std::string output;
};

// Thread t of n mixes records t, t + n, t + 2n, … among themselves. The next sort then has to move everything
// over the whole array again. The sorted result does not depend on it.
void shuffle(RecordArray& records, uint64_t seed, unsigned threads) {
  run_threads(threads, [&](unsigned t) {
    Random random(seed + t);
    std::vector<std::byte> spare(records.record_size());
    uint64_t own = records.count() / threads;
    for (uint64_t i = own; i > 1; --i) {
      std::byte* a = records.at((i - 1) * threads + t);
      std::byte* b = records.at(random.below(i) * threads + t);
      if (a == b) continue;
      std::memcpy(spare.data(), a, spare.size());
      std::memcpy(a, b, spare.size());
      std::memcpy(b, spare.data(), spare.size());
    }
  });
}

void write_file(const RecordArray& records, const std::string& path) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw std::runtime_error(fmt::format("cannot create {}: {}", path, std::strerror(errno)));
  const std::byte* at = records.at(0);
  const std::byte* end = records.at(records.count());
  while (at < end) {
    ssize_t n = write(fd, at, static_cast<size_t>(std::min<ptrdiff_t>(end - at, 8 << 20)));
    if (n < 0) throw std::runtime_error(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
    at += n;
  }
  if (close(fd) != 0)
    throw std::runtime_error(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  uint64_t size = std::max(arguments.record_size, kSmallestRecord);
  RecordArray records(arguments.records != 0 ? arguments.records : arguments.size / size,
                      arguments.record_size);
  run_threads(common.threads, [&](unsigned t) {
    Share share = share_of(records.count(), t, common.threads);
    for (uint64_t i = share.first; i < share.last; ++i) records.fill(i, i, common.seed);
  });
  ParallelMergeSort sorter(records, common.threads);
  std::string checksum;
  for (uint64_t round = 1; round <= arguments.rounds; ++round) {
    if (round > 1) shuffle(records, mix(common.seed + round), common.threads);
    sorter.sort();
    std::string fault = first_fault(records, common.seed, common.threads);
    if (!fault.empty()) {
      results.add("result", fmt::format("wrong in round {}: {}", round, fault));
      return kExitWrongResult;
    }
    Checksum sum;
    sum.add(records.at(0), records.count() * records.record_size());
    if (round > 1 && sum.hex() != checksum) {
      results.add("result", fmt::format("wrong in round {}: another checksum", round));
      return kExitWrongResult;
    }
    checksum = sum.hex();
    if (arguments.rounds > 1 && !common.json) {
      fmt::print("round {} {}\n", round, checksum);
      std::fflush(stdout);
    }
  }
  if (!arguments.output.empty()) write_file(records, arguments.output);
  results.add("records", records.count());
  results.add("record_size", records.record_size());
  results.add("first_key", fmt::format("{:016x}", records.key(0)));
  results.add("last_key", fmt::format("{:016x}", records.key(records.count() - 1)));
  results.add("checksum", checksum);
  results.add("result", "sorted ok");
  return kExitOk;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments arguments;
  bench::Program program;
  program.name = "mergesort";
  program.description =
      "Sorts pseudo-random records in memory by a parallel merge sort and prints a checksum of the result.";
  program.configure = [&](bench::CommandLine& line) {
    line.size("-s,--size", arguments.size, "Bytes of all records together");
    line.size("-n,--records", arguments.records, "Number of records, instead of --size; 0: as --size says");
    line.size("--record-size", arguments.record_size, "Bytes of a record, a multiple of 8");
    line.number("--rounds", arguments.rounds, "Shuffle and sort this many times", 1);
    line.file("-o,--output", arguments.output, "Write all sorted records to this file");
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
