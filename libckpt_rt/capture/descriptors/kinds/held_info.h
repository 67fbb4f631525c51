// fdinfo of some descriptors, whose files of /proc are held open from ahead of the stop to its end: one
// pread in the stop shows their locks, counters and the like.
//
// Owner:     DescriptorCapture. Callers: the agent.
// Never:     holds more than half of the numbers that the limit allows.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/kinds/classifier.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class HeldInfo {
 public:
  HeldInfo(OpenFiles& files, DescriptorAccess& access, Classifier& classifier)
      : files_(files), access_(access), classifier_(classifier) {}
  HeldInfo(const HeldInfo&) = delete;
  HeldInfo& operator=(const HeldInfo&) = delete;

  void begin();
  // One of the table-to-be, which is classified.
  void hold(CapturedDescriptor& d);
  bool holds_any() const { return holds_any_; }
  // In the stop: what needs no sample, then the rest.
  Result<void> read_held();
  Result<void> read_rest();
  // When the program runs again.
  void note_late_locks(DescriptorNotes& notes) const;
  void close_all();

 private:
  Result<void> read_counter(CapturedDescriptor& d);

  OpenFiles& files_;
  DescriptorAccess& access_;
  Classifier& classifier_;
  uint32_t locked_files_ = 0, counters_ = 0;
  long most_number_ = 0;
  bool holds_any_ = false;
};

}  // namespace ckpt
