// Checkpoints of a SmallProgram by the library's own sources, in the order of the back ends that use them
// (libckpt_rt/checkpoint/back_ends), and what must hold of each.
//
// Owner:     tests/protect_model. run() once for each object.
#pragma once

#include <optional>

#include "base/settings/settings.h"
#include "copier/copier.h"
#include "libckpt_rt/guard/in_thread_memory.h"
#include "libckpt_rt/guard/mprotect_memory.h"
#include "libckpt_rt/protect/arming.h"
#include "tests/protect_model/small_program.h"

namespace ckpt {
class Watch;
}

namespace ckpt::test {

class Checkpoints {
 public:
  static constexpr uint64_t kSegment = 2 * kPageSize;

  struct How {
    FaultBackEnd faults;
    SmallKernel::Version version;
    bool ahead;          // memory is protected ahead of the stop
    size_t count;        // checkpoints; all but the last leave a watch
    size_t buffers = 0;  // of the pool; 0: enough for all, which are written when all is copied
  };

  Checkpoints(const How& how, std::vector<Step> steps);
  // Returns the number of instants there were.
  size_t run();
  // What must not be and was.
  const std::vector<std::string>& wrong() const { return kernel_.wrong; }
  // Were all of them good to the end, none given up?
  bool complete() const { return complete_; }
  uint64_t inherited() const { return inherited_; }
  // The last instant before the program went on after its first stop.
  size_t instants_at_stop() const { return instants_at_stop_; }

 private:
  void take_by_handler();
  bool take_one(Watch& watch, bool first, bool keep);
  void take_ahead_under_guard();
  void take_in_stop_under_guard(GuardedMemory& memory);
  void protect_ahead(Arming& arming, Watch* renewed);
  void settle(Arming& arming, SegmentTable& table, std::vector<Mapping>& map);
  void look_at_stop(const SegmentTable& table, const std::vector<Mapping>& map);
  void copy_under_guard(GuardedMemory& memory, Copier& copier, SegmentTable& table);
  void inherit(const SegmentTable& table);
  // The image is complete, or was given up, which raw calls that take memory away are a reason for.
  bool judge(Copier& copier, bool complete);
  void require(const Result<void>& result);
  void fail(std::string what) { kernel_.wrong.push_back(std::move(what)); }
  BufferPool& pool() const;
  // With few buffers: the writer beside the copier, which holds as many as the sink may, and waits for
  // batches.
  void start_writer();
  void write(const CopiedSegment& segment);

  const How how_;
  SmallKernel kernel_;
  SmallProgram program_;
  Arena lists_, scratch_;
  std::optional<FilledQueue> queue_;
  std::vector<SmallKernel::Page> at_stop_;
  std::vector<uint64_t> image_, parent_;  // content of each page; 0: not in it
  size_t removals_at_stop_ = 0, instants_at_stop_ = 0;
  bool complete_ = true;
  uint64_t inherited_ = 0;
};

}  // namespace ckpt::test
