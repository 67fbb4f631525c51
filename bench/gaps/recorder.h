// What a working thread of gaps notes at every step: how long the step took and how far it is.
//
// Owner:     bench/gaps. Header only; the record file is read by bench/latency.
// Callers:   each thread its own Recorder.
// The record file: a RecordHeader, then its gaps, then its ticks, for each thread. Times are of
// CLOCK_MONOTONIC, so that another process can lay them beside what it did.
#pragma once

#include <time.h>

#include <csignal>
#include <cstdint>
#include <vector>

#include "bench/gaps/histogram.h"

namespace bench {

struct Gap {
  int64_t begin_ns, length_ns;
};
struct Tick {
  int64_t at_ns;
  uint64_t steps;  // done until then
};
struct RecordHeader {
  uint64_t gaps, ticks, unrecorded;  // unrecorded: gaps for which there was no room
};

inline constexpr int64_t kTickNs = 5'000'000;

inline int64_t clock_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

class Recorder {
 public:
  Recorder(int64_t end_ns, int64_t gaps_from_ns, const volatile std::sig_atomic_t& stop)
      : end_ns_(end_ns), from_ns_(gaps_from_ns), stop_(stop) {
    constexpr size_t kRoom = 1 << 20;  // reserved, touched as it is used
    if (gaps_from_ns > 0) {
      gaps_.reserve(kRoom);
      ticks_.reserve(kRoom / 8);
    }
    last_ns_ = clock_ns();
    next_tick_ns_ = last_ns_;
  }

  // To be called after every step; false when it is time to end.
  bool step() {
    int64_t now = clock_ns(), length = now - last_ns_;
    last_ns_ = now;
    ++steps_;
    histogram_.add(static_cast<uint64_t>(length));
    if (from_ns_ > 0) {
      if (length >= from_ns_) {
        if (gaps_.size() < gaps_.capacity())
          gaps_.push_back({now - length, length});
        else
          ++unrecorded_;
      }
      if (now >= next_tick_ns_ && ticks_.size() < ticks_.capacity()) {
        ticks_.push_back({now, steps_});
        next_tick_ns_ = now + kTickNs;
      }
    }
    return now < end_ns_ && stop_ == 0;
  }

  const Histogram& histogram() const { return histogram_; }
  const std::vector<Gap>& gaps() const { return gaps_; }
  const std::vector<Tick>& ticks() const { return ticks_; }
  RecordHeader header() const { return {gaps_.size(), ticks_.size(), unrecorded_}; }

 private:
  int64_t end_ns_, from_ns_;
  const volatile std::sig_atomic_t& stop_;
  int64_t last_ns_, next_tick_ns_;
  uint64_t steps_ = 0, unrecorded_ = 0;
  Histogram histogram_;
  std::vector<Gap> gaps_;
  std::vector<Tick> ticks_;
};

}  // namespace bench
