// Watches of epoll(7), from the lines of an epoll's fdinfo.
//
// Owner:     DescriptorCapture. Callers: the agent. Which file a watch is on is looked for in the stop alone.
// Never:     changes a watch.
#pragma once

#include <string_view>

#include "base/memory/bytes.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class EpollWatches {
 public:
  EpollWatches(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes)
      : files_(files), access_(access), notes_(notes) {}
  EpollWatches(const EpollWatches&) = delete;
  EpollWatches& operator=(const EpollWatches&) = delete;

  // The watch that the line tells, as a detail. before: the lines of fdinfo before it. False: it tells none.
  Result<bool> put(const CapturedDescriptor& epoll, std::string_view line, std::string_view before,
                   ByteWriter& out);

 private:
  const CapturedDescriptor* watched_by(const CapturedDescriptor& epoll, int number, uint64_t inode,
                                       std::string_view before, bool& is_another) const;

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
};

}  // namespace ckpt
