#include "libckpt_rt/core/process/statistics.h"

#include <cstring>
#include <new>

#include "base/locks/futex.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::statistics {

namespace {

constinit FutexLock<LockRank::kStatistics> lock;
constinit Statistics counted;

}  // namespace

void count_success(int64_t pause_ns, int64_t processor_ns, const char* image) {
  ScopedLock guard(lock);
  counted.checkpoints++;
  counted.total_pause_ns += pause_ns;
  counted.processor_ns += processor_ns;
  if (pause_ns > counted.longest_pause_ns) counted.longest_pause_ns = pause_ns;
  const size_t length = strnlen(image, sizeof(counted.last_image) - 1);
  std::memcpy(counted.last_image, image, length);
  counted.last_image[length] = '\0';
}

void count_failure(const Error& error) {
  ScopedLock guard(lock);
  counted.failures++;
  std::memcpy(counted.last_error, error.text, sizeof(counted.last_error));
}

void set_last_error(const Error& error) {
  ScopedLock guard(lock);
  std::memcpy(counted.last_error, error.text, sizeof(counted.last_error));
}

Statistics read() {
  ScopedLock guard(lock);
  return counted;
}

void put_back(const Statistics& all) {
  ScopedLock guard(lock);
  counted = all;
}

void reset_in_child() {
  reset_after_restart();
  counted = {};
}

void reset_after_restart() { new (&lock) FutexLock<LockRank::kStatistics>; }

}  // namespace ckpt::statistics
