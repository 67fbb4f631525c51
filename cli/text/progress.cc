#include "cli/text/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/text/human.h"

namespace ckpt::cli {

namespace {
constexpr int64_t kQuietNs = 1'000'000'000;  // shorter work needs no bar
constexpr int64_t kRedrawNs = 100'000'000;
constexpr int kWidth = 30;
}  // namespace

Progress::Progress(std::string what, int64_t (*clock)())
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1), clock_(clock), started_ns_(clock()) {}

void Progress::update(uint64_t done, uint64_t total) {
  int64_t now = clock_();
  if (!terminal_ || now - started_ns_ < kQuietNs || now - last_ns_ < kRedrawNs) return;
  last_ns_ = now;
  drawn_ = true;
  if (total == 0) {
    fmt::print(stderr, "\r\033[K{}  {}", what_, human_bytes(done));
  } else {
    done = std::min(done, total);
    auto filled = static_cast<int>(static_cast<double>(done) / static_cast<double>(total) * kWidth);
    fmt::print(stderr, "\r\033[K{}  [{:#<{}}{: <{}}] {} of {}", what_, "", filled, "", kWidth - filled,
               human_bytes(done), human_bytes(total));
  }
  std::fflush(stderr);
}

void Progress::clear() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace ckpt::cli
