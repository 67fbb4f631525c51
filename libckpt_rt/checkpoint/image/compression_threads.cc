#include "libckpt_rt/checkpoint/image/compression_threads.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

uint32_t CompressionThreads::most() const {
  uint64_t processors[128];  // 8192
  const long bytes = sys::call(__NR_sched_getaffinity, 0L, sizeof(processors), processors);
  int usable = 0;
  for (long i = 0; i < bytes / 8; i++) usable += std::popcount(processors[i]);
  return usable <= 1 ? 0 : std::min(static_cast<uint32_t>(usable - 1), kMost);
}

bool CompressionThreads::start(void (*fn)(void*), void* arg) {
  const ScopedLock guard(lock_);
  if (count_ == kMost) return false;
  RawThread& thread = threads_[count_];
  if (!thread.reserve()) return false;
  // A child that the program forks meanwhile has no use for its stack.
  sys::call(__NR_madvise, thread.block().start.value, thread.block().size(), MADV_DONTFORK);
  if (thread.spawn(fn, arg, DescriptorTable::kShareWithCaller) != 0) {
    thread.release();
    return false;
  }
  count_++;
  return true;
}

std::span<const int> CompressionThreads::hold(std::span<int> ids) {
  lock_.lock();
  for (uint32_t i = 0; i < count_; ++i) ids[i] = threads_[i].tid();
  return ids.first(count_);
}

void CompressionThreads::join() {
  for (; count_ > 0; count_--) {
    RawThread& thread = threads_[count_ - 1];
    thread.join();
    times_ += thread.times();
    thread.await_gone();
    thread.release();
  }
}

}  // namespace ckpt
