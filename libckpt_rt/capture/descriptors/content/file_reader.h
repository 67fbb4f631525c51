// The bytes of files of the program, read for the image.
//
// Owner:     FileContents. Callers: the agent, ahead of the stop and in it.
// Never:     moves an offset of the program's for longer than a look in the stop; opens a file with a lease.
#pragma once

#include <span>

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

// A range of a memfd or deleted file that the memory half of the image saves (it is mapped shared).
struct MappedFileRange {
  uint64_t device, inode;
  uint64_t offset, length;  // bytes in the file
};

class FileReader {
 public:
  FileReader(const OpenFiles& files, DescriptorAccess& access) : files_(files), access_(access) {}
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  static constexpr uint64_t kAny = ~uint64_t{0};
  static constexpr size_t kMostPieces = 1024;  // a few milliseconds

  void forget() { ahead_ = {}; }
  // Ranges that another part of the image saves. The span must stay valid.
  void skip_mapped(std::span<const MappedFileRange> ranges) { mapped_ = ranges; }
  bool is_mapped(const CapturedDescriptor& d) const;

  // Appends what the file holds, without holes and without what the memory half saves. Fails with
  // kIo when the bytes cannot be had, or are more than `most`, or in more than kMostPieces then.
  Result<void> copy(const CapturedDescriptor& d, DescriptorContents& to, uint64_t most = kAny);
  // A description of our own, whose offset is not the program's. Where the file may not be opened again, or
  // opening would break the program's lease, it is a duplicate, which shares the program's offset.
  int open(const CapturedDescriptor& d, bool& shares_offset);
  // Touches memory ahead of the stop for so many bytes, which files that are being written need in it.
  void get_memory_ahead(uint64_t bytes);

 private:
  std::byte* take_memory(uint64_t bytes);

  const OpenFiles& files_;
  DescriptorAccess& access_;
  std::span<const MappedFileRange> mapped_;
  std::span<std::byte> ahead_;
};

}  // namespace ckpt
