// Which kind of open file a descriptor is, where it leads, and what fdinfo says of it: kind, path and details
// of one descriptor whose sample is there.
//
// Owner:     DescriptorCapture. Callers: the agent, ahead of the stop and in it.
// Never:     changes an open file.
#pragma once

#include <string_view>

#include "base/memory/bytes.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/kinds/epoll_watches.h"
#include "libckpt_rt/capture/descriptors/kinds/file_names.h"
#include "libckpt_rt/capture/descriptors/kinds/file_watches.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class Classifier {
 public:
  Classifier(OpenFiles& files, DescriptorAccess& access, FileNames& names, EpollWatches& epolls,
             FileWatches& watches)
      : files_(files), access_(access), names_(names), epolls_(epolls), watches_(watches) {}
  Classifier(const Classifier&) = delete;
  Classifier& operator=(const Classifier&) = delete;

  Result<void> classify(CapturedDescriptor& d);
  // The locks that it has now, and nothing else.
  Result<void> read_locks(CapturedDescriptor& d);
  // details.cc: the lines of fdinfo that belong to its kind, as details.
  Result<void> read_details(CapturedDescriptor& d, const FdInfo& info);

 private:
  Result<void> classify_place(CapturedDescriptor& d, std::string_view path) const;
  bool read_target(CapturedDescriptor& d) const;
  Result<void> classify_file(CapturedDescriptor& d, std::string_view path);
  Result<void> classify_device(CapturedDescriptor& d, std::string_view path);
  Result<void> read_first_locks(CapturedDescriptor& d);
  void take_up_timer(const CapturedDescriptor& d, TimerDetail& timer);

  OpenFiles& files_;
  DescriptorAccess& access_;
  FileNames& names_;
  EpollWatches& epolls_;
  FileWatches& watches_;
};

}  // namespace ckpt
