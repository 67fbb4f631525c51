// gaps: threads that work on memory and look at the clock at every step. What stops them, a checkpoint,
// a page fault or the scheduler, shows as a gap between two steps.
//
// Unlike the other programs here, its output is a measurement.
#include <atomic>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>

#include "bench/common.h"
#include "bench/gaps/loads.h"
#include "bench/gaps/surroundings.h"

namespace bench {
namespace {

struct Arguments {
  uint64_t size = uint64_t{256} << 20;
  double seconds = 5;
  std::string load = "page";
  unsigned waiting = 0, descriptors = 0, mappings = 0;
  std::string record;
  int64_t record_from_ns = 3000;
};

Load load_named(const std::string& name) {
  static const std::map<std::string, Load> kLoads{{"idle", Load::kIdle},
                                                  {"page", Load::kPage},
                                                  {"uniform", Load::kUniform},
                                                  {"server", Load::kServer},
                                                  {"sort", Load::kSort}};
  return kLoads.at(name);
}

volatile std::sig_atomic_t stop = 0;

void write_record(const std::string& path, const std::vector<std::unique_ptr<Recorder>>& recorders) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  auto put = [&](const void* p, size_t n) {
    file.write(static_cast<const char*>(p), static_cast<std::streamsize>(n));
  };
  for (const auto& r : recorders) {
    RecordHeader header = r->header();
    put(&header, sizeof(header));
    put(r->gaps().data(), r->gaps().size() * sizeof(Gap));
    put(r->ticks().data(), r->ticks().size() * sizeof(Tick));
  }
  file.close();
  if (!file) throw std::runtime_error(fmt::format("cannot write {}", path));
}

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  constexpr uint64_t kPageWords = 4096 / sizeof(uint64_t);
  // Every thread needs a page of its own, and a sort two records.
  uint64_t pages = std::max<uint64_t>(arguments.size / 4096, common.threads);
  std::vector<uint64_t> memory(pages * kPageWords, 1);
  Surroundings surroundings;
  surroundings.open_descriptors(arguments.descriptors);
  surroundings.make_mappings(arguments.mappings);
  surroundings.start_waiting_threads(arguments.waiting);

  const int64_t end = clock_ns() + static_cast<int64_t>(arguments.seconds * 1e9);
  const int64_t record_from = arguments.record.empty() ? 0 : arguments.record_from_ns;
  std::vector<std::unique_ptr<Recorder>> recorders(common.threads);
  std::atomic<unsigned> ready{0};
  run_threads(common.threads, [&](unsigned t) {
    // Everybody is there before anybody measures.
    ready.fetch_add(1);
    while (ready.load() < common.threads) std::this_thread::yield();
    if (t == 0) {
      // Whoever started us may take checkpoints from here on.
      fmt::print("ready\n");
      std::fflush(stdout);
    }
    recorders[t] = std::make_unique<Recorder>(end, record_from, stop);
    run_load(load_named(arguments.load), memory, t, common.threads, common.seed, *recorders[t]);
  });
  Histogram all;
  for (const auto& r : recorders) all.add(r->histogram());
  if (!arguments.record.empty()) write_record(arguments.record, recorders);
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
      "Works on memory without rest and reports the gaps between its steps as percentiles (a measurement).\n"
      "Ends after --seconds, or at SIGTERM.";
  program.configure = [&](bench::CommandLine& line) {
    line.size("-s,--size", arguments.size, "Bytes of memory of all threads together");
    line.number("--seconds", arguments.seconds, "Duration", 1e-6, 1e9);
    line.one_of("--load", arguments.load, {"idle", "page", "uniform", "server", "sort"},
                "A step: idle: nothing; page: a word of a random page of the thread's own;\n"
                "uniform: a word anywhere; server: a request to a table, one in ten writes;\n"
                "sort: 64 records of a merge sort");
    line.number("--waiting", arguments.waiting, "Further threads, which wait", 0u, 30000u);
    line.number("--descriptors", arguments.descriptors, "Descriptors to keep open", 0u, 1000000u);
    line.number("--mappings", arguments.mappings, "Mappings to have", 0u, 1000000u);
    line.file("--record", arguments.record, "Write long gaps and progress to this file (binary)");
    line.number("--record-from", arguments.record_from_ns, "Gaps recorded, in ns and longer", int64_t{1},
                INT64_MAX);
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    struct sigaction action {};
    action.sa_handler = [](int) { bench::stop = 1; };
    sigaction(SIGTERM, &action, nullptr);
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
