// What a thread did when, in the Chrome trace event format: chrome://tracing and ui.perfetto.dev open it.
//
// Owner:     a thread of the engine; written to the file after the run by the simulation.
// Callers:   that thread only.
// Never:     grows beyond kMost entries: later ones are counted, and the count is in the file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <vector>

#include "base/clock.h"

namespace ckpt::timewarp {

class Trace {
 public:
  enum class Kind : uint32_t { kEvent, kRollback, kGvt };
  static constexpr size_t kMost = 400'000;

  void open(bool wanted) { wanted_ = wanted; }
  bool wanted() const { return wanted_; }
  int64_t begin() const { return wanted_ ? now_ns() : 0; }
  void add(Kind kind, int64_t begin, uint32_t lp, double time, uint32_t count) {
    if (!wanted_) return;
    if (entries_.size() == kMost) {
      ++left_out_;
      return;
    }
    entries_.push_back({begin, now_ns(), time, lp, count, kind});
  }
  // Entries, one a line, each with a comma behind it.
  void write(FILE* file, int64_t start, unsigned process, unsigned thread) const;

 private:
  struct TraceEntry {
    int64_t begin, end;
    double time;
    uint32_t lp, count;
    Kind kind;
  };
  bool wanted_ = false;
  uint64_t left_out_ = 0;
  std::vector<TraceEntry> entries_;
};

}  // namespace ckpt::timewarp
