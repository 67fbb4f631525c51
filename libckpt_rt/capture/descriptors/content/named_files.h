// Files with a name that the program has open for writing. Their bytes are saved, 16 MiB of them at most: a
// restart undoes what the program writes in place after the checkpoint. (Appended bytes are cut off at a
// restart, and need no copy.)
//
// Owner:     FileContents. Callers: the agent.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/content/file_reader.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class NamedFiles {
 public:
  NamedFiles(OpenFiles& files, DescriptorAccess& access, const FileReader& reader)
      : files_(files), access_(access), reader_(reader) {}
  NamedFiles(const NamedFiles&) = delete;
  NamedFiles& operator=(const NamedFiles&) = delete;

  // The image is to have them.
  void save() { saves_ = true; }
  // The room for all of them, bytes.
  uint64_t begin();
  bool take_room(uint64_t bytes) {
    if (bytes > room_) return false;
    room_ -= bytes;
    return true;
  }
  // Of what is mapped the memory half of the image has the bytes. first_in_order: in OpenFiles::order().
  bool may_overwrite(size_t first_in_order);
  // Ahead of the stop: about as many bytes an image needs for the file, which may be sparse;
  // FileReader::kAny: it is too long.
  uint64_t bytes_ahead(size_t first_in_order);
  bool is_sparse(size_t first_in_order) const;
  uint64_t room() const { return room_; }
  // A single note for all files that are too long: `count` of them, `first` the first.
  static Result<void> note_too_long(DescriptorNotes& notes, size_t count, const CapturedDescriptor& first);

 private:
  OpenFiles& files_;
  DescriptorAccess& access_;
  const FileReader& reader_;
  bool saves_ = false;
  uint64_t room_ = 0;          // bytes of such that may still be copied
  uint64_t plain_device_ = 0;  // a device whose files are files
};

}  // namespace ckpt
