// From the image's mappings to the restorer's list: which call makes each, from which descriptor.
//
// Owner:     restart. Callers: takes_image_bytes: ckpt-restart and child. MemoryPlan: the child.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "restart/descriptors/saved_mappings.h"
#include "restart/files/working_fds.h"
#include "restart/plan/memory/fill_plan.h"
#include "restart/plan/shared_objects.h"
#include "restart/reports/report.h"
#include "restart/restorer/restorer_args.h"

namespace ckpt {

// Does the image hold what must go into this mapping? Not for a file that the program could only
// read: what the image has of it is what the file had.
bool takes_image_bytes(const ParsedMapping& mapping);

// Is the mapping made again at all (and not moved, like the vdso, or left to the library)?
bool is_rebuilt(const ParsedMapping& mapping);

// "/usr/lib/libc.so.6 at 7f12…-7f13…", for messages.
std::string mapping_name(const ImageMeta& meta, uint32_t index);

class MemoryPlan {
 public:
  MemoryPlan(const ImageMeta& meta, const FillPlan& fill, const SharedObjects& objects,
             SavedMappings saved_files)
      : meta_(meta), fill_(fill), objects_(objects), saved_files_(std::move(saved_files)) {}

  // Opens the files, above the saved descriptors. Changes no mapping.
  Result<void> build(WorkingFds& fds, ReportChannel& report);
  const std::vector<RestorerMapping>& mappings() const { return mappings_; }

 private:
  Result<int> open_file(const ParsedMapping& m, WorkingFds& fds);
  bool is_sealed(uint64_t object) const;
  // A descriptor open for reading only, of the memfd that fd leads to.
  Result<int> reader_of(uint64_t object, int fd, WorkingFds& fds);
  Result<void> clear(const ParsedMapping& m, int fd, const std::string& path);

  const ImageMeta& meta_;
  const FillPlan& fill_;
  const SharedObjects& objects_;
  const SavedMappings saved_files_;
  std::vector<RestorerMapping> mappings_;
  std::map<std::pair<std::string, bool>, int> open_;  // path, for writing -> descriptor
  std::map<uint64_t, int> readers_;                   // of sealed memfds, by object
};

}  // namespace ckpt
