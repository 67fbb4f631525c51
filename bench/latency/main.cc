// latency: what a checkpoint costs the program. Google Benchmark drives three families for each mode:
//
//   checkpoint/PROGRAM/SIZE/MODE   checkpoints of a running program: pause, waits, copies, bytes, time
//   lost/PROGRAM/SIZE/MODE         the same work plain, preloaded, and checkpointed, side by side
//   gaps/SIZE/MODE                 what the program itself sees: gaps between its steps
//
// Times are those the library and the program report; see docs/benchmarks.md.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "bench/latency/child.h"

namespace latency {
namespace {

struct Arguments {
  Places places;
  std::vector<std::string> sizes{"256M", "1G"};
  std::vector<std::string> modes{"realtime", "sequential", "fork"};
  unsigned checkpoints = 7;
  unsigned pairs = 3;
  double gap_seconds = 5;
};

bool any_failed = false;

void fail(benchmark::State& state, const std::exception& e) {
  any_failed = true;
  state.SkipWithError(e.what());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// One column of many answers of ckpt now.
std::vector<double> column(const std::vector<nlohmann::json>& answers, const char* key, double unit) {
  std::vector<double> values;
  for (const auto& a : answers) values.push_back(a.value(key, 0.0) / unit);
  return values;
}

std::vector<std::string> sort_command(const Arguments& arguments, const std::string& size, unsigned rounds) {
  return {arguments.places.program("mergesort"), "--size", size, "--rounds", std::to_string(rounds)};
}

// One iteration is one checkpoint of a sort in full swing; its time is the pause.
void checkpoint(benchmark::State& state, const Arguments& arguments, const std::string& size,
                const std::string& mode) try {
  constexpr unsigned kEndless = 1'000'000;
  Child child(arguments.places, sort_command(arguments, size, kEndless), mode);
  if (!child.read_until("round 1 ")) throw Failure("the sort ended before its first round was done");
  std::vector<nlohmann::json> answers;
  for (auto _ : state) {
    answers.push_back(child.checkpoint());
    state.SetIterationTime(answers.back().value("pause_ns", 0.0) / 1e9);
    if (!child.read_until("round ")) throw Failure("the sort ended");
  }
  state.counters["pause_median_ms"] = median(column(answers, "pause_ns", 1e6));
  state.counters["pause_max_ms"] = largest(column(answers, "pause_ns", 1e6));
  state.counters["wait_max_ms"] = largest(column(answers, "longest_wait_ns", 1e6));
  state.counters["forced"] = median(column(answers, "forced_copies", 1));
  state.counters["sequential"] = median(column(answers, "sequential_copies", 1));
  state.counters["durable_s"] = median(column(answers, "durable_ns", 1e9));
  state.counters["image_MiB"] = median(column(answers, "bytes_written", 1 << 20));
  state.SetLabel(answers.back().value("mode", ""));
} catch (const std::exception& e) {
  fail(state, e);
}

// One iteration is the sort plain, preloaded, and preloaded with one checkpoint in the middle, one
// after the other, so that all three see the same machine.
void lost(benchmark::State& state, const Arguments& arguments, const std::string& size,
          const std::string& mode) try {
  constexpr unsigned kRounds = 6;
  auto command = sort_command(arguments, size, kRounds);
  auto run = [&](const std::string& child_mode, bool with_checkpoint) {
    Child child(arguments.places, command, child_mode);
    if (with_checkpoint) {
      if (!child.read_until("round 2 ")) throw Failure("the sort ended before its second round was done");
      child.checkpoint();
    }
    child.finish();
    return child.seconds();
  };
  std::vector<double> plain, preloaded, checkpointed;
  for (auto _ : state) {
    plain.push_back(run("", false));
    preloaded.push_back(run(mode, false));
    checkpointed.push_back(run(mode, true));
    state.SetIterationTime(std::max(0.0, checkpointed.back() - preloaded.back()));
  }
  state.counters["plain_s"] = median(plain);
  state.counters["preloaded_s"] = median(preloaded);
  state.counters["checkpointed_s"] = median(checkpointed);
  state.counters["lost_ms"] = (median(checkpointed) - median(preloaded)) * 1e3;
} catch (const std::exception& e) {
  fail(state, e);
}

// One iteration is one run of gaps, with checkpoints one after the other until it ends; mode "none"
// shows what the machine alone does. The time is the largest gap.
void gaps(benchmark::State& state, const Arguments& arguments, const std::string& size,
          const std::string& mode) try {
  nlohmann::json seen;
  unsigned taken = 0;
  for (auto _ : state) {
    Child child(arguments.places,
                {arguments.places.program("gaps"), "--size", size, "--threads", "1", "--seconds",
                 std::to_string(arguments.gap_seconds), "--json"},
                mode == "none" ? "" : mode);
    if (!child.read_until("ready")) throw Failure("gaps did not begin");
    taken = 0;
    // Until half of the time is over, so that the last one ends within the run.
    for (double begin = child.seconds();
         mode != "none" && child.seconds() - begin < arguments.gap_seconds / 2;) {
      child.checkpoint();
      ++taken;
    }
    seen = nlohmann::json::parse(child.finish());
    state.SetIterationTime(seen.value("largest_ns", 0.0) / 1e9);
  }
  for (const char* key : {"p50_ns", "p99_ns", "p999_ns", "p9999_ns", "p99999_ns", "p999999_ns"}) {
    state.counters[key] = seen.value(key, 0.0);
  }
  state.counters["largest_ms"] = seen.value("largest_ns", 0.0) / 1e6;
  state.counters["in_gaps_ms"] = seen.value("in_gaps_from_10us_ns", 0.0) / 1e6;
  state.counters["checkpoints"] = taken;
} catch (const std::exception& e) {
  fail(state, e);
}

void register_all(const Arguments& a) {
  for (const auto& size : a.sizes) {
    for (const auto& mode : a.modes) {
      benchmark::RegisterBenchmark(fmt::format("checkpoint/mergesort/{}/{}", size, mode).c_str(),
                                   [&a, size, mode](benchmark::State& s) { checkpoint(s, a, size, mode); })
          ->Iterations(a.checkpoints)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
    for (const auto& mode : a.modes) {
      benchmark::RegisterBenchmark(fmt::format("lost/mergesort/{}/{}", size, mode).c_str(),
                                   [&a, size, mode](benchmark::State& s) { lost(s, a, size, mode); })
          ->Iterations(a.pairs)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
    std::vector<std::string> with_none{"none"};
    with_none.insert(with_none.end(), a.modes.begin(), a.modes.end());
    for (const auto& mode : with_none) {
      benchmark::RegisterBenchmark(fmt::format("gaps/{}/{}", size, mode).c_str(),
                                   [&a, size, mode](benchmark::State& s) { gaps(s, a, size, mode); })
          ->Iterations(1)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace latency

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // takes its own --benchmark_… arguments
  latency::Arguments arguments;
  arguments.places.build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  arguments.places.images = std::filesystem::current_path();
  CLI::App app("Measures what checkpoints cost a running program, in each mode.", "latency");
  app.footer(
      "All --benchmark_... options of Google Benchmark work, for example --benchmark_filter=checkpoint.*1G "
      "and\n"
      "--benchmark_format=json. Exit codes: 0 measured; 1 a measurement failed; 64 wrong arguments.");
  app.set_version_flag("--version", "latency " CKPT_VERSION);
  app.add_option("--build", arguments.places.build, "Build directory with bin, lib and bench")
      ->capture_default_str();
  app.add_option("--images", arguments.places.images, "Where images go, on the disk to be measured")
      ->capture_default_str();
  app.add_option("--sizes", arguments.sizes, "Sizes of memory")->delimiter(',')->capture_default_str();
  app.add_option("--modes", arguments.modes, "Modes")->delimiter(',')->capture_default_str();
  app.add_option("--checkpoints", arguments.checkpoints, "Checkpoints of each kind")->capture_default_str();
  app.add_option("--pairs", arguments.pairs, "Side-by-side runs of each kind")->capture_default_str();
  app.add_option("--gap-seconds", arguments.gap_seconds, "Duration of a run of gaps")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 64;
  }
  for (const std::string& needed :
       {arguments.places.library(), arguments.places.ckpt(), arguments.places.program("mergesort"),
        arguments.places.program("gaps")}) {
    if (!std::filesystem::exists(needed)) {
      fmt::print(stderr, "latency: {} is not there; build first, or give --build\n", needed);
      return 64;
    }
  }
  latency::register_all(arguments);
  size_t run = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return run > 0 && !latency::any_failed ? 0 : 1;
}
