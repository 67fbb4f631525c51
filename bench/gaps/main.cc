// gaps: threads that write memory without rest and look at the clock at every step. What stops them,
// a checkpoint, a page fault or the scheduler, shows as a gap between two steps.
//
// Unlike the other programs here, its output is a measurement.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "bench/common.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPage = 4096;

struct Arguments {
  uint64_t size = uint64_t{256} << 20;
  double seconds = 5;
};

// Counts of gaps in classes that are 1/16 of a power of two wide: 6 % is exact enough.
class Histogram {
 public:
  void add(uint64_t ns) {
    ++counts_[class_of(ns)];
    ++total_;
    sum_ += ns;
    largest_ = std::max(largest_, ns);
  }
  void add(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    sum_ += other.sum_;
    largest_ = std::max(largest_, other.largest_);
  }
  // The least value (upper end of its class) that `share` of all gaps do not exceed, in ns.
  uint64_t percentile(double share) const {
    auto wanted = static_cast<uint64_t>(share * static_cast<double>(total_));
    uint64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > wanted) return std::min(end_of(i), largest_);
    }
    return largest_;
  }
  // Sum of the gaps in classes from `ns` on, approximately, in ns.
  uint64_t time_in_gaps_from(uint64_t ns) const {
    uint64_t time = 0;
    for (size_t i = class_of(ns); i < counts_.size(); ++i) time += counts_[i] * end_of(i);
    return time;
  }
  uint64_t total() const { return total_; }
  uint64_t largest() const { return largest_; }

 private:
  static constexpr unsigned kFine = 16;
  static size_t class_of(uint64_t ns) {
    if (ns < kFine) return ns;
    unsigned power = static_cast<unsigned>(std::bit_width(ns)) - 1;  // 4 or more
    return (power - 3) * kFine + ((ns >> (power - 4)) & (kFine - 1));
  }
  static uint64_t end_of(size_t i) {
    if (i < kFine) return i;
    uint64_t power = i / kFine + 3, fine = i % kFine;
    return ((kFine + fine + 1) << (power - 4)) - 1;
  }

  std::array<uint64_t, 62 * kFine> counts_{};
  uint64_t total_ = 0, sum_ = 0, largest_ = 0;
};

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  uint64_t pages = std::max<uint64_t>(arguments.size / kPage / common.threads, 1);
  std::vector<Histogram> histograms(common.threads);
  std::atomic<unsigned> ready{0};
  run_threads(common.threads, [&](unsigned t) {
    std::vector<std::byte> memory(pages * kPage, std::byte{1});
    // Everybody has touched its memory before anybody measures.
    ready.fetch_add(1);
    while (ready.load() < common.threads) std::this_thread::yield();
    if (t == 0) {
      // Whoever started us may take checkpoints from here on.
      fmt::print("ready\n");
      std::fflush(stdout);
    }
    Random random(common.seed + t);
    auto end = Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arguments.seconds));
    auto last = Clock::now();
    while (last < end) {
      auto* word = reinterpret_cast<volatile uint64_t*>(memory.data() + random.below(pages) * kPage);
      *word = *word + 1;
      auto now = Clock::now();
      histograms[t].add(static_cast<uint64_t>((now - last).count()));
      last = now;
    }
  });
  Histogram all;
  for (const Histogram& h : histograms) all.add(h);
  results.add("steps", all.total());
  for (auto [name, share] : {std::pair{"p50_ns", 0.5},
                             {"p99_ns", 0.99},
                             {"p999_ns", 0.999},
                             {"p9999_ns", 0.9999},
                             {"p99999_ns", 0.99999},
                             {"p999999_ns", 0.999999}}) {
    results.add(name, all.percentile(share));
  }
  results.add("largest_ns", all.largest());
  results.add("in_gaps_from_10us_ns", all.time_in_gaps_from(10'000));
  results.add("in_gaps_from_1ms_ns", all.time_in_gaps_from(1'000'000));
  return kExitOk;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments arguments;
  bench::Program program;
  program.name = "gaps";
  program.description =
      "Writes memory without rest and reports the gaps between its steps as percentiles (a measurement).";
  program.configure = [&](CLI::App& app) {
    bench::add_size(app, "-s,--size", arguments.size, "Bytes written by all threads together");
    app.add_option("--seconds", arguments.seconds, "Duration")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
