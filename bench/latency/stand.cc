// How long threads stand still, from inside the program beside what the library reports.
//
//   stand/LOAD/SIZE/METHOD            loads of bench/gaps
//   stand/SURROUNDINGS/256M/METHOD    the server load, with threads that wait, descriptors or mappings
//   slow/LOAD/256M/METHOD             a pool of 16 MiB, and images go where 200 MiB a second go
//
// METHOD is a mode of the library, or none (what the machine alone does), plain-fork, criu.
#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "bench/latency/machine.h"
#include "bench/latency/record.h"
#include "bench/latency/statistics.h"
#include "bench/latency/suite.h"

namespace latency {
namespace {

struct Plan {
  std::string load, size, method;
  std::vector<std::string> surroundings;
  unsigned checkpoints;
  std::string pool = {};
  std::vector<std::string> settings = {};
};

// What a child or a copy of the whole takes besides the program.
bool needs_second_copy(const std::string& method) {
  return method == "fork" || method == "concurrent" || method == "realtime-large" || method == kPlainFork;
}

double stand(benchmark::State& state, const Arguments& a, const Plan& plan) {
  const uint64_t bytes = bytes_of(plan.size);
  const uint64_t memory = needs_second_copy(plan.method) ? bytes / 2 * 5 : bytes / 4 * 5;
  const uint64_t disk = plan.method == kNone ? 0 : bytes / 4 * 9;  // one is removed when the next is complete
  if (available_memory() < memory || free_disk(a.places.images) < disk) {
    throw Unavailable(fmt::format("{} needs {:.0f} GiB of available memory and {:.0f} GiB of disk", plan.size,
                                  static_cast<double>(memory) / 0x1p30, static_cast<double>(disk) / 0x1p30));
  }
  // An idle program is seen by one thread that does nothing but look at the clock.
  const unsigned threads = plan.load == "idle" ? 1 : a.threads;
  std::vector<std::string> command{
      a.places.program("gaps"), "--load",    plan.load, "--size", plan.size,  "--threads",
      std::to_string(threads),  "--seconds", "3600",    "--json", "--record", "{directory}/record"};
  command.insert(command.end(), plan.surroundings.begin(), plan.surroundings.end());
  Child child(a.places, command, {.method = plan.method, .pool = plan.pool, .settings = plan.settings});
  child.read_until("ready");
  // Progress without a checkpoint: at the start, between checkpoints, and at the end.
  auto rest = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  rest(a.quick ? 0.3 : 1);
  std::vector<Checkpoint> taken;
  for (unsigned i = 0; i < plan.checkpoints && plan.method != kNone; ++i) {
    taken.push_back(child.checkpoint());
    rest(std::clamp(taken.back().seconds() / 2, 0.05, 2.0));
  }
  rest(a.quick ? 0.3 : 1);
  if (plan.method == kNone) rest(a.quick ? 1 : 8);
  child.terminate();
  child.finish();

  Seen seen = compare(read_record(child.directory() + "/record"), taken);
  constexpr double kMs = 1e6, kUs = 1e3;
  state.counters["other_gap_max_ms"] = largest(seen.other_gaps) / kMs;
  state.counters["steps_per_s"] = seen.steps_per_second;
  state.counters["unrecorded"] = static_cast<double>(seen.unrecorded);
  if (taken.empty()) return largest(seen.other_gaps) / 1e9;
  state.counters["checkpoints"] = static_cast<double>(taken.size());
  set_percentiles(state, "inside_ms", seen.pauses, kMs);
  set_percentiles(state, "largest_gap_ms", seen.largest_gaps, kMs);
  set_percentiles(state, "wait_us", seen.waits, kUs);
  state.counters["waits"] = static_cast<double>(seen.waits.size()) / static_cast<double>(taken.size());
  set_median(state, "lost_ms", seen.lost, kMs);
  set_median(state, "lost_percent", seen.lost_share, 0.01);
  std::vector<double> seconds;
  for (const Checkpoint& c : taken) seconds.push_back(c.seconds());
  set_median(state, "checkpoint_s", seconds);
  if (!taken.front().answer.empty()) {
    set_percentiles(state, "library_ms", column(taken, "pause_ns"), kMs);
    set_percentiles(state, "library_wait_us", column(taken, "longest_wait_ns"), kUs);
    set_median(state, "faults", column(taken, "faults"));
    set_median(state, "buffer_waits", column(taken, "buffer_waits"));
    set_median(state, "forced", column(taken, "forced_copies"));
    set_median(state, "sequential", column(taken, "sequential_copies"));
    set_median(state, "memory_MiB", column(taken, "bytes_memory"), 1 << 20);
    state.SetLabel(used_mode(taken));
  }
  return median(seen.pauses) / 1e9;
}

// Fewer checkpoints of what takes longer.
unsigned checkpoints_of(const Arguments& a, const std::string& size, const std::string& method) {
  const uint64_t bytes = bytes_of(size);
  if (a.quick) return method == a.modes.front() ? 6 : 2;
  unsigned most = bytes <= 256u << 20 ? 50 : bytes <= 1u << 30 ? 20 : bytes <= 4ull << 30 ? 8 : 4;
  return method == a.modes.front() ? most : std::max(3u, most / 4);
}

}  // namespace

void add_stand(const Arguments& a) {
  std::vector<std::string> methods = a.modes;
  methods.push_back(kPlainFork);
  Method criu = try_criu(a.places);
  if (criu.why_not.empty())
    methods.push_back(kCriu);
  else
    add("rival/criu", [why = criu.why_not](benchmark::State&) -> double { throw Unavailable(why); });
  auto add_one = [&a](const std::string& name, const Plan& plan) {
    add(fmt::format("stand/{}/{}/{}", name, plan.size, plan.method),
        [&a, plan](benchmark::State& s) { return stand(s, a, plan); });
  };
  std::vector<std::string> with_none{kNone};
  with_none.insert(with_none.end(), methods.begin(), methods.end());
  for (const auto& size : a.sizes) {
    for (const char* load : {"idle", "sort", "server", "uniform"}) {
      for (const auto& method : with_none) {
        // Minutes each, for a figure that has shown itself by then.
        if (bytes_of(size) > 4ull << 30 && method != kNone && method != a.modes.front()) continue;
        add_one(load, {load, size, method, {}, checkpoints_of(a, size, method)});
      }
    }
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> surroundings{
      {"threads-128", {"--waiting", "126"}},
      {"threads-1024", {"--waiting", "1022"}},
      {"descriptors-1000", {"--descriptors", "1000"}},
      {"mappings-5000", {"--mappings", "5000"}}};
  for (const auto& [name, options] : surroundings) {
    for (const auto& method : methods)
      add_one(name, {"server", "256M", method, options, checkpoints_of(a, "1G", method)});
  }
  for (const char* load : {"sort", "server", "uniform"}) {
    const std::string& method = a.modes.front();
    add(fmt::format("slow/{}/256M/{}", load, method),
        [&a, plan = Plan{load,
                         "256M",
                         method,
                         {},
                         a.quick ? 2u : 10u,
                         "16M",
                         {"CKPT_TO=" + a.places.program("trickle") + " --rate 200M >/dev/null"}}](
            benchmark::State& s) { return stand(s, a, plan); });
  }
}

}  // namespace latency
