// What the parts of the latency suite share: arguments, and how a measurement becomes a benchmark.
//
// Owner:     bench/latency. A measurement runs once and sets counters; Google Benchmark selects by name
//            and writes JSON, report.py draws from it.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/latency/child.h"

namespace latency {

struct Arguments {
  Places places;
  bool quick = false;
  std::vector<std::string> sizes;  // of the table of pauses
  std::vector<std::string> modes;  // those that work here
  unsigned threads = 2;            // that work, in the table of pauses
};

// Returns what the time column shows, in seconds.
using Measurement = std::function<double(benchmark::State&)>;
void add(const std::string& name, Measurement measurement);
bool any_failed();

// `key_p50`, `key_p99`, `key_max` and the like of values divided by unit.
void set_percentiles(benchmark::State& state, const std::string& key, const std::vector<double>& values,
                     double unit);
// `key`: the median; `key_min`, `key_max`.
void set_median(benchmark::State& state, const std::string& key, const std::vector<double>& values,
                double unit = 1);
// One key of many answers of ckpt now.
std::vector<double> column(const std::vector<Checkpoint>& checkpoints, const char* key);
// The mode really used, for the label.
std::string used_mode(const std::vector<Checkpoint>& checkpoints);

uint64_t bytes_of(const std::string& size);  // "256M"

void add_paper(const Arguments& arguments);  // paper.cc: graphs 1 to 9
void add_stand(const Arguments& arguments);  // stand.cc: how long threads stand still
void add_quiet(const Arguments& arguments);  // quiet.cc: costs besides

}  // namespace latency
