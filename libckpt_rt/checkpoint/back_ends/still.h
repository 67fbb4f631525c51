// Back ends that have all of memory read while nobody changes it: threads stand, or it is a forked child's.
//
// Owner:     run_stages(). Callers: the agent.
#pragma once

#include "libckpt_rt/checkpoint/attempt.h"
#include "libckpt_rt/checkpoint/stages/back_end.h"

namespace ckpt {

class StillBackEnd : public BackEnd {
 public:
  explicit StillBackEnd(Attempt& attempt) : attempt_(attempt) {}

  Result<void> reserve(const Room&) override { return {}; }
  Result<void> open_image() override;
  void add_own_ranges() override {}
  Result<void> get_ready() override { return attempt_.get_ready({}); }

 protected:
  ~StillBackEnd() = default;

  // Lists what there is; eager: pages that are to be copied in the pause, nullptr: none are.
  Result<void> list_memory(EagerCopies* eager);
  enum class Part { kAll, kShared, kPrivate };  // of the table
  // The sink reads the program's pages in place.
  Result<void> write_table(Part part = Part::kAll);
  Result<void> describe_and_commit();

  Attempt& attempt_;
  SegmentTable table_;

 private:
  // Pages that cannot be read in place, into `bounce`. Pages that the file does not have leave the mask.
  Result<void> read_pages(const Segment& segment, bool file, std::byte* bounce, uint64_t* mask);

  std::byte* bounce_ = nullptr;  // of a segment's size
};

// Writes all while threads stand. Of a job, what is shared is written before any member goes on.
class SequentialBackEnd final : public StillBackEnd {
 public:
  using StillBackEnd::StillBackEnd;
  Result<void> capture_memory() override;
  Result<void> finish() override;

 private:
  Result<void> copy_shared();
  Result<void> commit_standing();

  Part left_ = Part::kAll;  // to be written when all have been sampled
};

// Copies all while threads stand, and writes it when they go on ("concurrent" of Li, Naughton and Plank).
class ConcurrentBackEnd final : public StillBackEnd {
 public:
  using StillBackEnd::StillBackEnd;
  Result<void> reserve(const Room& room) override;
  Result<void> capture_memory() override;
  Result<void> finish() override;
};

}  // namespace ckpt
