#include "bench/latency/record.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

namespace latency {
namespace {

struct Span {
  int64_t begin, end;
  int64_t length() const { return end - begin; }
};

// Parts that lie in both lists, which are in order.
std::vector<Span> common(const std::vector<Span>& a, const std::vector<Span>& b) {
  std::vector<Span> both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    Span s{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (s.begin < s.end) both.push_back(s);
    ++(a[i].end < b[j].end ? i : j);
  }
  return both;
}

// Steps done until `at`, by interpolation between ticks.
double steps_until(const std::vector<bench::Tick>& ticks, int64_t at) {
  if (ticks.empty()) return 0;
  auto after = std::lower_bound(ticks.begin(), ticks.end(), at,
                                [](const bench::Tick& t, int64_t ns) { return t.at_ns < ns; });
  if (after == ticks.begin()) return static_cast<double>(after->steps);
  if (after == ticks.end()) return static_cast<double>(ticks.back().steps);
  const bench::Tick &x = *(after - 1), &y = *after;
  double share = static_cast<double>(at - x.at_ns) / static_cast<double>(y.at_ns - x.at_ns);
  return static_cast<double>(x.steps) + share * static_cast<double>(y.steps - x.steps);
}

// A thread's gaps that touch a checkpoint.
std::vector<Span> gaps_within(const WorkerRecord& thread, const Checkpoint& c) {
  std::vector<Span> spans;
  auto first =
      std::lower_bound(thread.gaps.begin(), thread.gaps.end(), c.begin_ns,
                       [](const bench::Gap& g, int64_t ns) { return g.begin_ns + g.length_ns <= ns; });
  for (; first != thread.gaps.end() && first->begin_ns < c.end_ns; ++first) {
    spans.push_back({first->begin_ns, first->begin_ns + first->length_ns});
  }
  return spans;
}

}  // namespace

std::vector<WorkerRecord> read_record(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<WorkerRecord> threads;
  bench::RecordHeader header;
  while (file.read(reinterpret_cast<char*>(&header), sizeof(header))) {
    WorkerRecord& t = threads.emplace_back();
    t.unrecorded = header.unrecorded;
    t.gaps.resize(header.gaps);
    t.ticks.resize(header.ticks);
    file.read(reinterpret_cast<char*>(t.gaps.data()),
              static_cast<std::streamsize>(header.gaps * sizeof(bench::Gap)));
    file.read(reinterpret_cast<char*>(t.ticks.data()),
              static_cast<std::streamsize>(header.ticks * sizeof(bench::Tick)));
    if (!file) throw Failure(fmt::format("{} is cut short", path));
  }
  if (threads.empty()) throw Failure(fmt::format("{} is empty or missing", path));
  return threads;
}

Seen compare(std::span<const WorkerRecord> threads, std::span<const Checkpoint> checkpoints) {
  Seen seen;
  const double count = static_cast<double>(threads.size());
  // Progress while no checkpoint is taken: between the first and the last tick, less the checkpoints.
  double steps = 0, time = 0;
  for (const WorkerRecord& t : threads) {
    seen.unrecorded += t.unrecorded;
    if (t.ticks.empty()) continue;
    steps += static_cast<double>(t.ticks.back().steps - t.ticks.front().steps);
    time += static_cast<double>(t.ticks.back().at_ns - t.ticks.front().at_ns);
    for (const Checkpoint& c : checkpoints) {
      steps -= steps_until(t.ticks, c.end_ns) - steps_until(t.ticks, c.begin_ns);
      time -= static_cast<double>(c.end_ns - c.begin_ns);
    }
  }
  const double rate = time > 0 ? steps / time : 0;  // of one thread, a ns
  seen.steps_per_second = rate * 1e9 * count;

  for (const Checkpoint& c : checkpoints) {
    std::vector<std::vector<Span>> gaps;
    for (const WorkerRecord& t : threads) gaps.push_back(gaps_within(t, c));
    std::vector<Span> all_stood = gaps.front();
    for (const auto& g : gaps) all_stood = common(all_stood, g);
    auto longest = std::max_element(all_stood.begin(), all_stood.end(),
                                    [](const Span& a, const Span& b) { return a.length() < b.length(); });
    int64_t pause = 0, largest = 0;
    for (const auto& of_thread : gaps) {
      for (const Span& g : of_thread) {
        largest = std::max(largest, g.length());
        const bool is_pause =
            longest != all_stood.end() && g.begin <= longest->begin && longest->end <= g.end;
        if (is_pause)
          pause = std::max(pause, g.length());
        else
          seen.waits.push_back(static_cast<double>(g.length()));
      }
    }
    seen.pauses.push_back(static_cast<double>(pause));
    seen.largest_gaps.push_back(static_cast<double>(largest));
    double done = 0;
    for (const WorkerRecord& t : threads)
      done += steps_until(t.ticks, c.end_ns) - steps_until(t.ticks, c.begin_ns);
    const double window = static_cast<double>(c.end_ns - c.begin_ns);
    const double share = rate > 0 ? 1 - done / (rate * count * window) : 0;
    seen.lost_share.push_back(share);
    seen.lost.push_back(share * window);
  }

  for (const WorkerRecord& t : threads) {
    auto c = checkpoints.begin();
    for (const bench::Gap& g : t.gaps) {
      while (c != checkpoints.end() && c->end_ns <= g.begin_ns) ++c;
      const bool within = c != checkpoints.end() && g.begin_ns + g.length_ns > c->begin_ns;
      if (!within) seen.other_gaps.push_back(static_cast<double>(g.length_ns));
    }
  }
  return seen;
}

}  // namespace latency
