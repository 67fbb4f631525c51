// How the program has set its terminal: without echo, without lines, as editors and pagers do. And its
// pseudo-terminals, which nobody but the program can make again.
//
// Owner:     DescriptorCapture. Callers: the agent, in the stop.
// Never:     reads or writes a byte of a terminal.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class Terminals {
 public:
  Terminals(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes)
      : files_(files), access_(access), notes_(notes) {}
  Terminals(const Terminals&) = delete;
  Terminals& operator=(const Terminals&) = delete;

  Result<void> look_stopped();

 private:
  Result<void> look_at_master(CapturedDescriptor& d);
  Result<void> look_at_terminal(CapturedDescriptor& d);

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
};

}  // namespace ckpt
