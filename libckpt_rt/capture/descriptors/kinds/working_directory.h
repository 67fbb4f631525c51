// The working directory of the program, if it has been removed: no name leads to it, so it is written as an
// open file that no descriptor of the program leads to.
//
// Owner:     DescriptorCapture. Callers: the agent, in the stop.
// Never:     keeps it open when the program runs: as SentFiles, which closes what is in no table but ours.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/kinds/classifier.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class WorkingDirectory {
 public:
  WorkingDirectory(OpenFiles& files, Classifier& classifier) : files_(files), classifier_(classifier) {}
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

  // tid: a thread of the program. Adds an open file where its working directory has no name.
  Result<void> look(int tid);

 private:
  OpenFiles& files_;
  Classifier& classifier_;
};

}  // namespace ckpt
