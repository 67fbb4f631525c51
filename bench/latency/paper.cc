// Graphs 1 to 9 of Li, Naughton and Plank (1989).
//
//   paper/mergesort/SIZE/MODE   1, 2, 3, 5: checkpoint time, overhead, initial stop, longest trap
//   paper/limited/MODE          4: memory for hardly more than the program
//   paper/segment/SEGMENT       6, 7: traps and the longest of them
//   paper/other/PROGRAM         8, 9: the other benchmark programs
//
// As in the paper, the program has all processors but one.
#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "bench/latency/cgroup.h"
#include "bench/latency/statistics.h"
#include "bench/latency/suite.h"

namespace latency {
namespace {

std::string program_threads() {
  return std::to_string(std::max(2u, std::thread::hardware_concurrency()) - 1);
}

std::vector<std::string> endless_sort(const Arguments& a, const std::string& size) {
  return {
      a.places.program("mergesort"), "--size", size, "--threads", program_threads(), "--rounds", "1000000"};
}

void set_answer_counters(benchmark::State& state, const std::vector<Checkpoint>& taken) {
  set_median(state, "checkpoint_s", column(taken, "durable_ns"), 1e9);
  set_median(state, "stop_ms", column(taken, "pause_ns"), 1e6);
  set_median(state, "trap_ms", column(taken, "longest_wait_ns"), 1e6);
  set_median(state, "traps", column(taken, "faults"));
  set_median(state, "forced", column(taken, "forced_copies"));
  set_median(state, "sequential", column(taken, "sequential_copies"));
  set_median(state, "memory_MiB", column(taken, "bytes_memory"), 1 << 20);
  state.counters["checkpoints"] = static_cast<double>(taken.size());
  state.SetLabel(used_mode(taken));
}

// A sort shuffles and sorts again and again. The overhead of a checkpoint is what the rounds it fell into
// took longer than the round before and the round after it: neighbours in time see the same machine.
double mergesort(benchmark::State& state, const Arguments& a, const std::string& size,
                 const std::string& mode, unsigned checkpoints) {
  Child child(a.places, endless_sort(a, size), {.method = mode});
  std::vector<Checkpoint> taken;
  std::vector<double> overheads, percent;
  auto round_end = [&] { return child.read_until("round ").at_ns; };
  round_end();  // the first is another one: memory is new
  int64_t round_began = round_end();
  int64_t before_ns = 0;
  {
    int64_t now = round_end();
    before_ns = now - round_began;
    round_began = now;
  }
  for (unsigned i = 0; i < checkpoints; ++i) {
    Checkpoint c = child.checkpoint();
    unsigned rounds = 0;
    int64_t end = round_began;
    do {
      end = round_end();
      ++rounds;
    } while (end < c.end_ns);
    int64_t after_end = round_end();
    double alone = static_cast<double>(before_ns + (after_end - end)) / 2;
    double overhead = static_cast<double>(end - round_began) - rounds * alone;
    overheads.push_back(overhead);
    percent.push_back(overhead / static_cast<double>(c.answer.value("durable_ns", int64_t{1})));
    before_ns = after_end - end;
    round_began = after_end;
    taken.push_back(std::move(c));
  }
  set_answer_counters(state, taken);
  set_median(state, "overhead_s", overheads, 1e9);
  set_median(state, "overhead_percent", percent, 0.01);
  return median(column(taken, "durable_ns")) / 1e9;
}

// Memory such that the program alone fills four fifths of it, as in the paper's graph 4.
double limited(benchmark::State& state, const Arguments& a, const std::string& mode) {
  std::string why;
  auto group = Cgroup::make(&why);
  if (!group) throw Unavailable(why);
  const std::string size = a.quick ? "128M" : "512M";
  // The pool takes its part of the remaining fifth.
  Child child(a.places, endless_sort(a, size),
              {.method = mode, .pool = a.quick ? "16M" : "64M", .cgroup_join_file = group->join_file()});
  child.read_until("round ");
  const uint64_t alone = group->anonymous();
  if (alone == 0 || !group->limit(alone / 4 * 5)) throw Unavailable("the kernel refuses the memory limit");
  state.counters["program_MiB"] = static_cast<double>(alone >> 20);
  state.counters["limit_MiB"] = static_cast<double>((alone / 4 * 5) >> 20);
  std::vector<Checkpoint> taken;
  try {
    for (unsigned i = 0; i < (a.quick ? 2 : 5); ++i) {
      taken.push_back(child.checkpoint());
      child.read_until("round ");
    }
  } catch (const Failure& e) {
    if (group->killed() == 0) throw;
    // A result: this way needs more memory than there is.
    throw Unavailable(
        fmt::format("out of memory: the kernel killed it at the limit of {} MiB", (alone / 4 * 5) >> 20));
  }
  set_answer_counters(state, taken);
  return median(column(taken, "durable_ns")) / 1e9;
}

double segment(benchmark::State& state, const Arguments& a, const std::string& mode,
               const std::string& bytes) {
  Child child(a.places, endless_sort(a, a.quick ? "64M" : "256M"), {.method = mode, .segment = bytes});
  child.read_until("round ");
  std::vector<Checkpoint> taken;
  for (unsigned i = 0; i < (a.quick ? 3 : 9); ++i) {
    taken.push_back(child.checkpoint());
    // Not in step with the rounds, so that every phase of the sort is met.
    std::this_thread::sleep_for(std::chrono::milliseconds(37 + 61 * (i % 5)));
  }
  set_answer_counters(state, taken);
  return median(column(taken, "longest_wait_ns")) / 1e9;
}

// Whole runs with and without checkpoints, alternating.
double other(benchmark::State& state, const Arguments& a, const std::string& mode,
             std::vector<std::string> command) {
  command.insert(command.end(), {"--threads", program_threads()});
  const unsigned pairs = a.quick ? 1 : 5;
  std::vector<Checkpoint> taken;
  std::vector<double> overheads, percent, alone;
  for (unsigned i = 0; i < pairs; ++i) {
    double seconds[2];
    std::vector<Checkpoint> now;
    for (bool with : {i % 2 == 0, i % 2 != 0}) {
      Child child(a.places, command, {.method = mode});
      if (with) {
        // Into the middle of the work: the inputs are there, the end is far.
        std::this_thread::sleep_for(std::chrono::milliseconds(a.quick ? 500 : 1500));
        for (unsigned k = 0; k < (a.quick ? 1 : 3); ++k) now.push_back(child.checkpoint());
      }
      child.finish();
      seconds[with] = child.seconds();
    }
    alone.push_back(seconds[0]);
    double overhead = (seconds[1] - seconds[0]) / static_cast<double>(now.size());
    overheads.push_back(overhead);
    percent.push_back(overhead / (median(column(now, "durable_ns")) / 1e9) * 100);
    taken.insert(taken.end(), now.begin(), now.end());
  }
  set_answer_counters(state, taken);
  set_median(state, "overhead_s", overheads);
  set_median(state, "overhead_percent", percent);
  set_median(state, "run_s", alone);
  return median(column(taken, "durable_ns")) / 1e9;
}

}  // namespace

void add_paper(const Arguments& a) {
  std::vector<std::string> sizes = a.quick
                                       ? std::vector<std::string>{"16M", "32M", "64M"}
                                       : std::vector<std::string>{"32M", "64M", "128M", "256M", "512M", "1G"};
  for (const auto& size : sizes) {
    for (const auto& mode : a.modes) {
      unsigned checkpoints = a.quick ? 2 : size == "1G" ? 3 : 5;
      add(fmt::format("paper/mergesort/{}/{}", size, mode),
          [&a, size, mode, checkpoints](benchmark::State& s) {
            return mergesort(s, a, size, mode, checkpoints);
          });
    }
  }
  for (const auto& mode : a.modes) {
    add("paper/limited/" + mode, [&a, mode](benchmark::State& s) { return limited(s, a, mode); });
  }
  // The paper shows the rest for its real-time algorithm for small memories alone.
  const std::string mode = a.modes.front();
  for (const char* bytes : {"4K", "8K", "16K", "32K", "64K", "128K", "256K"}) {
    add(fmt::format("paper/segment/{}", bytes),
        [&a, mode, bytes = std::string(bytes)](benchmark::State& s) { return segment(s, a, mode, bytes); });
  }
  const bool q = a.quick;
  const std::vector<std::vector<std::string>> programs = {
      {"tsp", "--cities", q ? "19" : "20"},
      {"matmul", "--type", "double", "--n", q ? "1024" : "2048", "--rounds", q ? "5" : "2"},
      {"pattern", "--length", q ? "16M" : "64M", "--pattern", "64"},
      {"bubblesort", "--records", q ? "40000" : "60000"}};
  for (auto command : programs) {
    std::string name = command[0];
    command[0] = a.places.program(name);
    add("paper/other/" + name,
        [&a, mode, command](benchmark::State& s) { return other(s, a, mode, command); });
  }
}

}  // namespace latency
