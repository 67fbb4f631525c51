// tsp: the shortest round trip through all cities, by branch and bound over paths.
//
// Paths of a few cities are the tasks; each thread takes the next one and extends it depth first. A
// path is given up when its length, plus the least that every city still ahead must cost, exceeds the
// best tour so far. Of tours of equal length the lexicographically smallest wins, and a path that
// could still reach an equal length is followed: the result does not depend on who was first.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "bench/common.h"

namespace bench {
namespace {

constexpr unsigned kLargestProblem = 64;  // cities: the visited set is one word
constexpr unsigned kTaskDepth = 4;        // cities in the path of a task

struct Arguments {
  unsigned cities = 21;
  bool exhaustive = false;
};

using Tour = std::vector<uint8_t>;

class Search {
 public:
  Search(unsigned cities, uint64_t seed, bool exhaustive)
      : n_(cities), exhaustive_(exhaustive), distance_(cities * cities), cheapest_(cities) {
    Random random(seed);
    std::vector<int64_t> x(n_), y(n_);
    for (unsigned i = 0; i < n_; ++i) {
      x[i] = static_cast<int64_t>(random.below(100000));
      y[i] = static_cast<int64_t>(random.below(100000));
    }
    for (unsigned i = 0; i < n_; ++i) {
      for (unsigned j = 0; j < n_; ++j) {
        double dx = static_cast<double>(x[i] - x[j]), dy = static_cast<double>(y[i] - y[j]);
        distance_[i * n_ + j] = static_cast<uint64_t>(std::llround(std::sqrt(dx * dx + dy * dy)));
      }
    }
    for (unsigned i = 0; i < n_; ++i) {
      uint64_t least = UINT64_MAX;
      for (unsigned j = 0; j < n_; ++j) {
        if (j != i) least = std::min(least, distance(i, j));
      }
      cheapest_[i] = least;
    }
    Tour path{0};
    make_tasks(path, 1);
  }

  // Called by each thread: works on tasks until none is left.
  void work() {
    for (;;) {
      // relaxed: only the number matters, the tasks do not change any more.
      size_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_.size()) return;
      Tour path = tasks_[task];
      uint64_t length = 0, visited = 0, ahead = 0;
      for (size_t i = 0; i < path.size(); ++i) {
        visited |= uint64_t{1} << path[i];
        if (i > 0) length += distance(path[i - 1], path[i]);
      }
      for (unsigned i = 0; i < n_; ++i) {
        if ((visited >> i & 1) == 0) ahead += cheapest_[i];
      }
      extend(path, visited, length, ahead);
    }
  }

  uint64_t length() const { return best_length_.load(); }
  const Tour& tour() const { return best_; }
  uint64_t length_of(const Tour& tour) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < tour.size(); ++i) sum += distance(tour[i], tour[(i + 1) % tour.size()]);
    return sum;
  }

 private:
  uint64_t distance(unsigned a, unsigned b) const { return distance_[a * n_ + b]; }

  void make_tasks(Tour& path, uint64_t visited) {
    if (path.size() == std::min(kTaskDepth, n_)) {
      tasks_.push_back(path);
      return;
    }
    for (unsigned c = 1; c < n_; ++c) {
      if (visited >> c & 1) continue;
      path.push_back(static_cast<uint8_t>(c));
      make_tasks(path, visited | uint64_t{1} << c);
      path.pop_back();
    }
  }

  // ahead: sum of the cheapest edge of every city not visited. The last city of the path still has
  // to be left: its cheapest edge belongs to the bound as well.
  void extend(Tour& path, uint64_t visited, uint64_t length, uint64_t ahead) {
    unsigned last = path.back();
    if (path.size() == n_) {
      offer(path, length + distance(last, 0));
      return;
    }
    for (unsigned c = 1; c < n_; ++c) {
      if (visited >> c & 1) continue;
      uint64_t grown = length + distance(last, c);
      // relaxed: an old value only means that a hopeless path is followed a little longer.
      if (!exhaustive_ && grown + ahead > best_length_.load(std::memory_order_relaxed)) continue;
      path.push_back(static_cast<uint8_t>(c));
      extend(path, visited | uint64_t{1} << c, grown, ahead - cheapest_[c]);
      path.pop_back();
    }
  }

  void offer(const Tour& tour, uint64_t length) {
    if (length > best_length_.load(std::memory_order_relaxed)) return;
    std::lock_guard lock(best_mutex_);
    uint64_t best = best_length_.load(std::memory_order_relaxed);
    if (length < best || (length == best && tour < best_)) {
      best_ = tour;
      best_length_.store(length, std::memory_order_relaxed);
    }
  }

  unsigned n_;
  bool exhaustive_;
  std::vector<uint64_t> distance_;
  std::vector<uint64_t> cheapest_;
  std::vector<Tour> tasks_;
  std::atomic<size_t> next_task_{0};
  std::atomic<uint64_t> best_length_{UINT64_MAX};
  std::mutex best_mutex_;
  Tour best_;
};

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  Search search(arguments.cities, common.seed, arguments.exhaustive);
  run_threads(common.threads, [&](unsigned) { search.work(); });
  const Tour& tour = search.tour();
  Tour sorted = tour;
  std::sort(sorted.begin(), sorted.end());
  bool right = tour.size() == arguments.cities && search.length_of(tour) == search.length();
  for (unsigned i = 0; right && i < arguments.cities; ++i) right = sorted[i] == i;
  results.add("cities", arguments.cities);
  results.add("length", search.length());
  results.add("tour", fmt::format("{}", fmt::join(tour, " ")));
  results.add("result", right ? "tour ok" : "wrong: not a round trip of that length");
  return right ? kExitOk : kExitWrongResult;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments arguments;
  bench::Program program;
  program.name = "tsp";
  program.description = "Finds the shortest round trip through pseudo-random cities by branch and bound.";
  program.configure = [&](bench::CommandLine& line) {
    line.number("-n,--cities", arguments.cities, "Number of cities", 3u, bench::kLargestProblem);
    line.flag("--exhaustive", arguments.exhaustive, "Follow every path, without a bound");
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
