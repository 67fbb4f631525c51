// latency: what a checkpoint costs the program. The families are in paper.cc, stand.cc and quiet.cc;
// scripts/latency.sh runs all of them and makes a page of the results. See docs/benchmarks.md.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "bench/latency/machine.h"
#include "bench/latency/statistics.h"
#include "bench/latency/suite.h"

namespace latency {
namespace {

bool failed = false;

}  // namespace

bool any_failed() { return failed; }

void add(const std::string& name, Measurement measurement) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [measurement = std::move(measurement)](benchmark::State& state) {
                                 try {
                                   for (auto _ : state) state.SetIterationTime(measurement(state));
                                 } catch (const Unavailable& e) {
                                   state.SkipWithError(e.what());
                                 } catch (const std::exception& e) {
                                   failed = true;
                                   state.SkipWithError(e.what());
                                 }
                               })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void set_percentiles(benchmark::State& state, const std::string& key, const std::vector<double>& values,
                     double unit) {
  for (auto [name, share] : {std::pair{"_min", 0.0},
                             {"_p50", 0.5},
                             {"_p90", 0.9},
                             {"_p99", 0.99},
                             {"_p999", 0.999},
                             {"_max", 1.0}}) {
    state.counters[key + name] = percentile(values, share) / unit;
  }
}

void set_median(benchmark::State& state, const std::string& key, const std::vector<double>& values,
                double unit) {
  state.counters[key] = median(values) / unit;
  state.counters[key + "_min"] = smallest(values) / unit;
  state.counters[key + "_max"] = largest(values) / unit;
}

std::vector<double> column(const std::vector<Checkpoint>& checkpoints, const char* key) {
  std::vector<double> values;
  for (const Checkpoint& c : checkpoints) values.push_back(c.answer.value(key, 0.0));
  return values;
}

std::string used_mode(const std::vector<Checkpoint>& checkpoints) {
  std::string used;
  for (const Checkpoint& c : checkpoints) {
    std::string mode = c.answer.value("mode", "");
    if (used.find(mode) == std::string::npos) used += (used.empty() ? "" : " and ") + mode;
  }
  return used;
}

uint64_t bytes_of(const std::string& size) {
  std::string number = size;
  uint64_t bytes = 0;
  // The same rule as that of the programs' own --size; turns "256M" into a number of bytes.
  return CLI::AsSizeValue(false)(number).empty() && CLI::detail::lexical_cast(number, bytes) ? bytes : 0;
}

}  // namespace latency

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // takes its own --benchmark_… arguments
  latency::Arguments arguments;
  arguments.places.build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  arguments.places.images = std::filesystem::current_path();
  CLI::App app("Measures what checkpoints cost a running program, in each mode, beside fork() and CRIU.",
               "latency");
  app.footer(
      "All --benchmark_... options of Google Benchmark work, for example --benchmark_filter=stand/.*/1G/ "
      "and\n"
      "--benchmark_out=FILE. scripts/latency.sh draws the results.\n"
      "Exit codes: 0 measured; 1 a measurement failed; 64 wrong arguments.");
  app.set_version_flag("--version", "latency " CKPT_VERSION);
  app.add_option("--build", arguments.places.build, "Build directory with bin, lib and bench")
      ->capture_default_str();
  app.add_option("--images", arguments.places.images, "Where images go, on the disk to be measured")
      ->capture_default_str();
  app.add_flag("--quick", arguments.quick, "Smaller and fewer: under five minutes on two cores");
  app.add_option("--sizes", arguments.sizes,
                 "Sizes of memory in the table of pauses (default 256M,1G,4G,16G)")
      ->delimiter(',');
  app.add_option("--modes", arguments.modes, "Modes (default: all that work here)")->delimiter(',');
  app.add_option("--threads", arguments.threads, "Working threads in the table of pauses")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 64;
  }
  for (const std::string& size : arguments.sizes) {
    if (latency::bytes_of(size) != 0) continue;
    fmt::print(stderr, "latency: --sizes: '{}' is not a size; use for example 256M or 1G\n", size);
    return 64;
  }
  if (arguments.sizes.empty()) {
    arguments.sizes = arguments.quick ? std::vector<std::string>{"256M"}
                                      : std::vector<std::string>{"256M", "1G", "4G", "16G"};
  }
  for (const std::string& needed : {arguments.places.library(), arguments.places.ckpt(),
                                    arguments.places.plain_fork(), arguments.places.program("gaps")}) {
    if (std::filesystem::exists(needed)) continue;
    fmt::print(stderr, "latency: {} is not there; build first, or give --build\n", needed);
    return 64;
  }
  try {
    for (const auto& [key, value] : latency::describe_machine(arguments.places.images)) {
      benchmark::AddCustomContext(key, value);
    }
    const bool all = arguments.modes.empty();
    for (const latency::Method& mode : latency::try_modes(arguments.places)) {
      if (!mode.why_not.empty())
        benchmark::AddCustomContext("mode_unavailable_" + mode.name, mode.why_not);
      else if (all)
        arguments.modes.push_back(mode.name);
    }
    if (arguments.modes.empty())
      throw latency::Failure("no mode of the library works here; try `ckpt check`");
    latency::add_quiet(arguments);
    latency::add_paper(arguments);
    latency::add_stand(arguments);
  } catch (const std::exception& e) {
    fmt::print(stderr, "latency: {}\n", e.what());
    return 1;
  }
  size_t run = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return run > 0 && !latency::any_failed() ? 0 : 1;
}
