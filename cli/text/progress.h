// A progress bar on a terminal's standard error, for work that takes over a second.
//
// Owner: cli. Ordinary code, one thread. Draws nothing when standard error is no terminal. Callers: commands
// that read whole images.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace ckpt::cli {

class Progress {
 public:
  explicit Progress(
      std::string what, int64_t (*clock)() = [] { return now_ns(); });
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // bytes; total 0: not known yet.
  void update(uint64_t done, uint64_t total);
  // Takes the bar off the screen.
  void clear();

 private:
  std::string what_;
  bool terminal_;
  bool drawn_ = false;
  int64_t (*clock_)();
  int64_t started_ns_, last_ns_ = 0;
};

}  // namespace ckpt::cli
