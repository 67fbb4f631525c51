// Bytes and packets that wait in pipes and FIFOs.
//
// Owner:     FileContents. Callers: the agent, in the stop.
// Never:     takes a byte out of a pipe of the program.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/content/file_reader.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class PipeContents {
 public:
  PipeContents(OpenFiles& files, DescriptorAccess& access, FileReader& reader)
      : files_(files), access_(access), reader_(reader) {}
  PipeContents(const PipeContents&) = delete;
  PipeContents& operator=(const PipeContents&) = delete;

  Result<void> copy(size_t first_in_order, DescriptorContents& to);
  // The pipe of ours that they are copied through.
  void close();

 private:
  Result<void> make_room(uint32_t size);
  Result<void> read_copy(const CapturedDescriptor& head, int in, uint64_t all, std::byte* bytes,
                         DescriptorContents& to);

  OpenFiles& files_;
  DescriptorAccess& access_;
  FileReader& reader_;
  int pipe_[2] = {-1, -1};
  uint32_t size_ = 0;
};

}  // namespace ckpt
