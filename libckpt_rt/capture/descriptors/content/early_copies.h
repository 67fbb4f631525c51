// Files that are copied while the program still runs. The copy is taken if the stop finds size and times
// unchanged; else the file is copied again, in the stop.
//
// Owner:     FileContents. Callers: the agent.
#pragma once

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/content/file_reader.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class EarlyCopies {
 public:
  EarlyCopies(const OpenFiles& files, DescriptorAccess& access, FileReader& reader)
      : files_(files), access_(access), reader_(reader) {}
  EarlyCopies(const EarlyCopies&) = delete;
  EarlyCopies& operator=(const EarlyCopies&) = delete;

  void begin(Arena& arena);
  // In the order of devices and inodes. False: not copied.
  Result<bool> copy(const CapturedDescriptor& d, uint64_t most = FileReader::kAny);
  // Appends the copy, if there is one that is good. False: no, and a part of it may have been appended.
  bool take(const CapturedDescriptor& d, DescriptorContents& to) const;

 private:
  // Good if nothing changed since.
  struct EarlyCopy {
    uint64_t device, inode, size;
    uint32_t links;
    int64_t mtime_ns, ctime_ns;
    size_t first, count;  // in contents_
  };
  bool list_mapped_shared();

  const OpenFiles& files_;
  DescriptorAccess& access_;
  FileReader& reader_;
  ArenaVector<EarlyCopy> copies_;
  DescriptorContents contents_;
  ArenaVector<uint64_t> mapped_shared_;             // inodes
  bool has_looked_ = false, knows_mapped_ = false;  // at what is mapped shared
};

}  // namespace ckpt
