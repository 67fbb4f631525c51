// What each descriptor is now, in the stop: stopped threads, which have the program's descriptor table, look,
// while the agent does what it alone can do.
//
// Owner:     DescriptorCapture. Callers: the agent; SampleJob::run: one or two stopped threads of the
//            program. Order: begin, help, await, take.
// Never:     changes an open file.
#pragma once

#include <atomic>
#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/core/threads/of_ours/other_threads.h"

namespace ckpt {

class DescriptorSampling {
 public:
  DescriptorSampling(OpenFiles& files, DescriptorAccess& access) : files_(files), access_(access) {}
  DescriptorSampling(const DescriptorSampling&) = delete;
  DescriptorSampling& operator=(const DescriptorSampling&) = delete;

  void forget() { is_under_way_ = false; }
  bool is_under_way() const { return is_under_way_; }
  // sharers: threads that have the program's table; without any all is read from outside.
  Result<void> begin(OtherThreads sharers);
  // Takes a part in what needs no program's table: the order of open files.
  void help() { job_.check_order(); }
  void await();
  // What was found comes into the table: descriptors that are closed go, and those that are new come.
  Result<void> take(OtherThreads sharers);
  // A descriptor of ours is in the program's table at the stop. -1: none.
  void hide(int fd) { hidden_ = fd; }

 private:
  // Threads that sample take descriptors from it until none is left, then checks, as the agent does.
  struct SampleJob {
    const CapturedDescriptor* entries;
    DescriptorSample* samples;
    size_t count;
    std::span<OpenFiles::OrderCheck> checks;
    int tid;
    std::atomic<size_t> next, next_check;
    static void run(void* job);
    bool has_much_left() const;
    void check_order();
  };
  void take_known();
  Result<void> take_new(OtherThreads sharers);
  bool sample_stopped(int fd, DescriptorSample& sample);

  OpenFiles& files_;
  DescriptorAccess& access_;
  OtherThreads sharers_;  // while it samples
  ArenaVector<DescriptorSample> fresh_;
  SampleJob job_{};
  bool is_under_way_ = false;
  int hidden_ = -1;
};

}  // namespace ckpt
