#include "image/write/compress/compression_crew.h"

#include <errno.h>

#include <algorithm>

#include "base/clock.h"
#include "image/format/checksum.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

uint32_t helpers_of(const HelperThreads* threads) {
  return threads == nullptr ? 0 : std::min(threads->most(), CompressionCrew::kMostHelpers);
}
// Without helpers one at a time: nobody works on a second.
uint32_t jobs_for(uint32_t helpers) { return helpers == 0 ? 1 : 2 * (helpers + 1); }

}  // namespace

size_t CompressionCrew::arena_bytes(Codec codec, int level, const HelperThreads* threads) {
  if (codec == Codec::kNone) return 0;
  const uint32_t helpers = helpers_of(threads);
  return size_t{jobs_for(helpers)} * 2 * Compressor::kMaxInput +
         (helpers + 1) * (Compressor::workspace_bytes(codec, level) + kPageSize) + kPageSize;
}

Result<void> CompressionCrew::start(Codec codec, int level, HelperThreads* threads, Arena& arena,
                                    ReleaseBuffer release, void* context) {
  first_ = count_ = helper_count_ = job_count_ = most_helpers_ = 0;
  over_.store(false, std::memory_order_relaxed);
  threads_ = threads;
  release_ = release;
  context_ = context;
  if (codec == Codec::kNone) return {};
  most_helpers_ = helpers_of(threads);
  job_count_ = jobs_for(most_helpers_);
  CKPT_TRY(mine_.start(codec, level, arena));
  for (uint32_t i = 0; i < most_helpers_; i++) CKPT_TRY(helper_[i].compressor.start(codec, level, arena));
  for (uint32_t i = 0; i < job_count_; i++) {
    Job& job = jobs_[i];
    job.gathered = static_cast<std::byte*>(arena.allocate(Compressor::kMaxInput, kPageSize));
    job.extent.packed = static_cast<std::byte*>(arena.allocate(Compressor::kMaxInput, kPageSize));
    if (job.gathered == nullptr || job.extent.packed == nullptr) {
      return make_error(ExitCode::kInternal, ENOMEM, "the arena is too small to compress");
    }
    job.holds = false;
    job.state.store(static_cast<uint32_t>(State::kFree), std::memory_order_relaxed);
  }
  return {};
}

void CompressionCrew::submit(uint64_t address, uint32_t length) {
  Job& job = jobs_[(first_ + count_) % job_count_];
  submit(job, address, {job.gathered, length});
}

void CompressionCrew::submit_held(uint64_t address, std::span<const std::byte> raw, uint32_t buffer) {
  Job& job = jobs_[(first_ + count_) % job_count_];
  job.buffer = buffer;
  job.holds = true;
  submit(job, address, raw);
}

void CompressionCrew::submit(Job& job, uint64_t address, std::span<const std::byte> raw) {
  count_++;
  job.extent.address = address;
  job.extent.length = static_cast<uint32_t>(raw.size());
  job.extent.raw = raw.data();
  job.extent.acceleration = acceleration_;
  // release: the thread that claims the job sees what was gathered.
  job.state.store(static_cast<uint32_t>(State::kReady), std::memory_order_release);
  if (helper_count_ == 0) return;
  // release, after the job: a helper that sees the new number finds the job.
  news_.fetch_add(1, std::memory_order_release);
  futex_wake(news_, 1);
}

const CompressionCrew::Extent& CompressionCrew::oldest() {
  Job& job = jobs_[first_];
  for (;;) {
    // acquire: what the helper wrote before it said kDone is seen.
    const uint32_t state = job.state.load(std::memory_order_acquire);
    if (state == static_cast<uint32_t>(State::kDone)) return job.extent;
    uint32_t from = first_;
    if (!work_on_any(mine_, from)) futex_wait(job.state, static_cast<uint32_t>(State::kTaken));
  }
}

void CompressionCrew::release_buffer(Job& job) {
  if (job.holds) release_(context_, job.buffer);
  job.holds = false;
}

void CompressionCrew::retired() {
  release_buffer(jobs_[first_]);
  jobs_[first_].state.store(static_cast<uint32_t>(State::kFree), std::memory_order_relaxed);
  first_ = (first_ + 1) % job_count_;
  count_--;
}

// The first from `at` on that nobody works on; `at` is behind it then.
bool CompressionCrew::work_on_any(Compressor& compressor, uint32_t& at) {
  for (uint32_t tried = 0; tried < job_count_; tried++, at = (at + 1) % job_count_) {
    Job& job = jobs_[at];
    uint32_t ready = static_cast<uint32_t>(State::kReady);
    // acquire: pairs with submit(). Of several threads that try, one gets the job.
    if (!job.state.compare_exchange_strong(ready, static_cast<uint32_t>(State::kTaken),
                                           std::memory_order_acquire)) {
      continue;
    }
    do_job(compressor, job);
    at = (at + 1) % job_count_;
    return true;
  }
  return false;
}

CompressionCrew::Extent CompressionCrew::compress_here(uint64_t address, std::span<const std::byte> raw,
                                                       std::byte* packed) {
  Extent extent = {address, static_cast<uint32_t>(raw.size()), raw.data(),
                   packed != nullptr ? packed : jobs_[first_].extent.packed};
  extent.acceleration = acceleration_;
  compress(mine_, extent, true);
  return extent;
}

void CompressionCrew::compress(Compressor& compressor, Extent& e, bool may_change) {
  const int64_t began = now_ns();
  // Worth it only if it saves a block.
  e.stored = static_cast<uint32_t>(
      compressor.compress({e.raw, e.length}, {e.packed, e.length - kBlockSize}, e.acceleration));
  if (e.stored > 0) {
    const uint64_t padded = round_up_to_block(e.stored);
    std::memset(e.packed + e.stored, 0, padded - e.stored);
    e.checksum = checksum_of({e.packed, padded});
  } else {
    if (may_change) {
      std::memcpy(e.packed, e.raw, e.length);
      e.raw = e.packed;
    }
    e.checksum = checksum_of({e.raw, e.length});
  }
  e.ns = now_ns() - began;
}

void CompressionCrew::do_job(Compressor& compressor, Job& job) {
  compress(compressor, job.extent, false);
  // release: the writer sees the results.
  job.state.store(static_cast<uint32_t>(State::kDone), std::memory_order_release);
  futex_wake(job.state, 1);
}

void CompressionCrew::add_helper() {
  if (helper_count_ == most_helpers_) return;
  Helper& helper = helper_[helper_count_];
  helper.crew = this;
  if (threads_->start(&run_helper, &helper)) {
    helper_count_++;
  } else {
    most_helpers_ = helper_count_;  // a limit has been reached: it is not tried again for each chunk
  }
}

void CompressionCrew::run_helper(void* self) {
  Helper& helper = *static_cast<Helper*>(self);
  CompressionCrew& crew = *helper.crew;
  for (uint32_t at = 0;;) {
    // acquire, before looking: a job that is submitted after this changes the number.
    const uint32_t seen = crew.news_.load(std::memory_order_acquire);
    if (crew.over_.load(std::memory_order_acquire)) return;
    if (!crew.work_on_any(helper.compressor, at)) futex_wait(crew.news_, seen);
  }
}

void CompressionCrew::stop() {
  if (helper_count_ > 0) {
    over_.store(true, std::memory_order_release);
    news_.fetch_add(1, std::memory_order_release);
    futex_wake(news_);
    threads_->join();
  }
  helper_count_ = 0;
  count_ = 0;
  for (Job& job : jobs_) release_buffer(job);
}

}  // namespace ckpt
