// Descriptors that were sent through a socket (SCM_RIGHTS) and are not received yet. A look at the message
// puts duplicates of them into our table, where they stay to the end of the stop.
//
// Owner:     SocketCapture. Callers: the agent, in the stop.
// Never:     keeps one open when the program runs: who has the table calls close_all() before.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/kinds/classifier.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class SentFiles {
 public:
  SentFiles(OpenFiles& files, DescriptorAccess& access, Classifier& classifier)
      : files_(files), access_(access), classifier_(classifier) {}
  SentFiles(const SentFiles&) = delete;
  SentFiles& operator=(const SentFiles&) = delete;

  // A descriptor in our table that came with a message: its index in OpenFiles::entries(), a new one if it
  // has none.
  Result<uint32_t> find(int fd);
  void close_all();

 private:
  OpenFiles& files_;
  DescriptorAccess& access_;
  Classifier& classifier_;
};

}  // namespace ckpt
