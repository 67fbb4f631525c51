// Bytes that exist nowhere else, or that the program may change after the checkpoint: those of files without
// a name, of memfds, pipes and queues, and of files that it has open for writing.
//
// Owner:     DescriptorCapture. Callers: the agent. Order: begin, copy_ahead while the program still runs,
//            copy_stopped in the stop, release when threads run again.
// Parts:     each has one job; FileContents asks the one that fits an open file.
//   FileReader        bytes of a file
//     EarlyCopies       large files, ahead of the stop
//   NamedFiles        which files with a name are saved
//   FileAttributes    of files without one
//   PipeContents, MessageQueues
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/content/attributes.h"
#include "libckpt_rt/capture/descriptors/content/early_copies.h"
#include "libckpt_rt/capture/descriptors/content/file_reader.h"
#include "libckpt_rt/capture/descriptors/content/message_queues.h"
#include "libckpt_rt/capture/descriptors/content/named_files.h"
#include "libckpt_rt/capture/descriptors/content/pipes.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class FileContents {
 public:
  FileContents(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes,
               DescriptorContents& contents)
      : files_(files),
        notes_(notes),
        contents_(contents),
        reader_(files, access),
        early_(files, access, reader_),
        named_(files, access, reader_),
        attributes_(files, access, notes),
        pipes_(files, access, reader_),
        queues_(files, access, notes) {}
  FileContents(const FileContents&) = delete;
  FileContents& operator=(const FileContents&) = delete;

  void begin(Arena& arena);
  void save_named() { named_.save(); }
  void skip_mapped(std::span<const MappedFileRange> ranges) { reader_.skip_mapped(ranges); }
  Result<void> copy_ahead();
  Result<void> copy_stopped();
  void send_the_rest() { queues_.send_the_rest(); }
  void close_pipe() { pipes_.close(); }

 private:
  // False: they are not in the image.
  bool copy_named(size_t first_in_order, bool whole, uint64_t most = FileReader::kAny);
  bool copy_sparse(size_t first_in_order);
  Result<void> copy_nameless(CapturedDescriptor& d);
  void number_contents(size_t from, uint32_t open_file);

  OpenFiles& files_;
  DescriptorNotes& notes_;
  DescriptorContents& contents_;
  FileReader reader_;
  EarlyCopies early_;
  NamedFiles named_;
  FileAttributes attributes_;
  PipeContents pipes_;
  MessageQueues queues_;
};

}  // namespace ckpt
