// Gives files the names back that they had at the checkpoint and have lost since.
//
// Owner:     restart/descriptors. Callers: DescriptorBuilder, once for a program or job, before its open
//            files are made.
// Never:     throws a file away that has the name now; follows a link that lies beside an image.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "image/read/image_meta.h"

namespace ckpt {

using Say = std::function<void(std::string_view)>;

// Makes `to`: a new file with the contents and times of `from`. False: errno says why.
bool copy_file(const std::string& from, const std::string& to, uint32_t mode);

// link: a name beside the image of a file that had one other name at the checkpoint, `path`, which it has
// lost. If the program has renamed it since, the new name becomes a file of its own: the file of the old name
// is cut back, and a rename of one name of a file to another one does nothing. Looked for in the directory of
// the path, the one above, and in those beside it. kIo: there is no room.
Result<void> separate_from_new_name(const std::string& link, const std::string& path, const Say& say);

// The name belongs to another file now. If the owner of ours made the other file since the checkpoint, it
// moves to `aside`, and ours has its name again. (A program that writes a new file and renames it over the
// old one does so for ever.) `aside` is a name in that directory, on the same file system. Returns that name;
// empty: all stays as it is, nothing is said. taken_ns: CLOCK_REALTIME at the checkpoint. one_name: as
// kOpenFileOneName. kIo: there is no room.
struct NameTaken {
  const std::string &link, &path, &directory_aside;
  uint64_t sequence;
  int64_t taken_ns;
  bool one_name;
};
Result<std::string> take_name_back(const NameTaken& name, const Say& say);

// Temporary files that nobody had open, of this directory beside an image (image/format/saved_file_names.h):
// those whose names are gone have them again. kIo: there is no room.
Result<void> put_back_temporary(const std::string& saved, const Say& say);

// A directory that was open and is gone, for the user of the process; empty.
Result<void> make_directory_again(const std::string& path, uint32_t mode, const ProcessRecord& process);

}  // namespace ckpt
