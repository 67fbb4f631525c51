// Extents on their way through compression: by the sink's thread (the writer), and by as many helpers as pay.
//
// Owner:     image/write. Memory from the arena of start(), fixed. No allocation, no libc state, no I/O.
// Callers:   the sink's thread; run_helper() is what helpers do.
// Never:     keeps extents from going to the file in the order in which they were submitted.
//
// A ring of jobs. The writer fills the one behind the newest, and takes out the oldest:
//
//   kFree --submit()--> kReady --claim: writer or helper--> kTaken --> kDone --retired()--> kFree
//                                    (compare-exchange)
// The writer never waits while there is a job that nobody has claimed: it does that one. So without helpers
// all is done by the writer, one extent at a time, and a helper that gets no processor delays no more than
// its own. One thread touches a job's buffers at a time: the writer while it is kFree or kDone, else the
// thread that claimed it.
#pragma once

#include "base/locks/futex.h"
#include "image/write/compress/compressor.h"
#include "image/write/compress/helper_threads.h"
#include "image/write/image_sink.h"

namespace ckpt {

class CompressionCrew {
 public:
  static constexpr uint32_t kMostHelpers = 7;

  struct Extent {
    uint64_t address;
    uint32_t length;
    const std::byte* raw;   // on a page
    std::byte* packed;      // the same, compressed; zeros up to a block
    uint32_t stored = 0;    // bytes in `packed`; 0: it does not become a block shorter
    uint64_t checksum = 0;  // of them and the zeros
    int64_t ns = 0;         // that compressing took
    int acceleration = 1;   // of lz4
  };

  static size_t arena_bytes(Codec codec, int level, const HelperThreads* helpers);
  // helpers may be null. release: of what is given to submit_held().
  Result<void> start(Codec codec, int level, HelperThreads* helpers, Arena& arena,
                     ReleaseBuffer release = nullptr, void* context = nullptr);

  bool full() const { return count_ == job_count_; }
  bool empty() const { return count_ == 0; }
  // Of what is submitted, or compressed here, from now on.
  void accelerate(int acceleration) { acceleration_ = acceleration; }
  // Where the next extent is gathered. Not full().
  std::byte* raw() { return jobs_[(first_ + count_) % job_count_].gathered; }
  // What was gathered there goes on its way.
  void submit(uint64_t address, uint32_t length);
  // An extent that stays where it is instead, in a buffer that is released when the extent is retired. Not
  // full().
  void submit_held(uint64_t address, std::span<const std::byte> raw, uint32_t buffer);
  // The oldest, compressed; valid until retired(). Not empty().
  const Extent& oldest();
  void retired();

  // The caller compresses an extent that is not gathered, while the crew is empty: to `packed`, which has
  // room for as much, or to a buffer of the crew, valid until the next. An extent that does not become
  // shorter is copied there, and is `raw` of the result: the program's own memory may change under a read
  // that the kernel has not ended.
  Extent compress_here(uint64_t address, std::span<const std::byte> raw, std::byte* packed);

  // One more helper, if there may be one.
  void add_helper();
  uint32_t helpers() const { return helper_count_; }
  uint32_t most_helpers() const { return most_helpers_; }
  // As many are on their way at most.
  uint32_t most_extents() const { return job_count_; }
  // Forgets all extents, and releases their buffers; the helpers are gone when it returns. Any number of
  // times.
  void stop();

 private:
  enum class State : uint32_t { kFree, kReady, kTaken, kDone };
  struct Job {
    FutexWord state{0};
    Extent extent{};
    std::byte* gathered = nullptr;  // Compressor::kMaxInput bytes
    uint32_t buffer = 0;
    bool holds = false;
  };
  struct Helper {
    CompressionCrew* crew;
    Compressor compressor;
  };
  static constexpr uint32_t kMostJobs = 2 * (kMostHelpers + 1);

  static void run_helper(void* helper);
  void submit(Job& newest, uint64_t address, std::span<const std::byte> raw);
  void release_buffer(Job& job);
  bool work_on_any(Compressor& compressor, uint32_t& at);
  // may_change: raw, meanwhile. Then what is stored is a copy, of which the checksum is.
  static void compress(Compressor& compressor, Extent& extent, bool may_change);
  static void do_job(Compressor& compressor, Job& job);

  Job jobs_[kMostJobs];
  uint32_t job_count_ = 0, first_ = 0, count_ = 0;
  Compressor mine_;
  Helper helper_[kMostHelpers];
  uint32_t helper_count_ = 0, most_helpers_ = 0;
  int acceleration_ = 1;
  HelperThreads* threads_ = nullptr;
  ReleaseBuffer release_ = nullptr;
  void* context_ = nullptr;
  // Counts submissions; a helper that found nothing sleeps until it has changed.
  FutexWord news_{0};
  std::atomic<bool> over_{false};
};

}  // namespace ckpt
