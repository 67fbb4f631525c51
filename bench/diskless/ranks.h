// What the MPI programs of this folder share: arguments, sums in the order of the ranks, the verdict of all.
//
// Owner:     bench/diskless. Ordinary MPI programs that know nothing of checkpoints.
// Callers:   main() of each rank; everything here but mine() is called by all ranks together.
// Never:     anything that depends on time, on the MPI library or on the speed of ranks may reach standard
//            output: the same arguments on as many ranks print the same bytes. So sums of doubles are not
//            left to MPI_Allreduce.
#pragma once

#include <mpi.h>

#include "bench/common.h"

namespace bench {

class Ranks {
 public:
  Ranks() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool first() const { return rank_ == 0; }
  Share mine(uint64_t items) const { return of(items, rank_); }
  Share of(uint64_t items, int rank) const {
    return share_of(items, static_cast<unsigned>(rank), static_cast<unsigned>(size_));
  }

  double sum(double value) const {
    std::vector<double> all(static_cast<size_t>(size_));
    MPI_Allgather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, MPI_COMM_WORLD);
    double total = 0;
    for (double v : all) total += v;
    return total;
  }
  double most(double value) const {
    double result = value;
    MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return result;
  }
  uint64_t sum(uint64_t value) const {
    uint64_t result = 0;
    MPI_Allreduce(&value, &result, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return result;
  }
  // One line, by the first rank, at once.
  template <typename... Values>
  void say(fmt::format_string<Values...> format, Values&&... values) const {
    if (!first()) return;
    fmt::print(format, std::forward<Values>(values)...);
    fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  int rank_ = 0;
  int size_ = 1;
};

struct RankProgram {
  std::string name;
  std::string description;
  std::function<void(CommandLine&)> configure;
  // Of all ranks: true if what this rank has checked holds.
  std::function<bool(const Ranks&)> run;
};

inline int run_ranks(const RankProgram& program, int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int code = kExitOk;
  {
    const Ranks ranks;
    CommandLine line(
        program.name, program.description,
        "The output depends on the arguments and the number of ranks alone.\n\n"
        "Exit codes: 0 done and verified; 1 the result is wrong; 64 wrong arguments; 71 not enough memory.");
    program.configure(line);
    try {
      // All ranks have the same arguments; one says what is wrong with them.
      if (const auto ended = line.parse(argc, argv, !ranks.first())) {
        code = *ended;
      } else {
        const bool holds = program.run(ranks);
        const bool all_hold = ranks.sum(uint64_t{holds ? 0u : 1u}) == 0;
        ranks.say("{}", all_hold ? "verified" : "WRONG");
        code = all_hold ? kExitOk : kExitWrongResult;
      }
    } catch (const std::invalid_argument& e) {
      if (ranks.first()) fmt::print(stderr, "{}: {}\n", program.name, e.what());
      code = kExitUsage;
    } catch (const std::bad_alloc&) {
      fmt::print(stderr, "{}: not enough memory; use a smaller size\n", program.name);
      MPI_Abort(MPI_COMM_WORLD, kExitSystem);
    }
  }
  MPI_Finalize();
  return code;
}

}  // namespace bench
