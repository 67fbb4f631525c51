// Files that the program had mapped, and that were removed or replaced since: what of them is kept beside the
// image (image/format/saved_file_names.h).
//
// Owner:     restart. Callers: ckpt-restart, which only looks; put_back: the child, of a job the planter; and
//            whoever opens the file.
// Never:     changes a file that is there.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "image/read/image_meta.h"

namespace ckpt {

// By name.
using WrittenFiles = std::set<std::string, std::less<>>;
// Adds what this process may write through a shared mapping.
void add_written_files(const ImageMeta& meta, WrittenFiles& files);

// Of all processes of a job.
struct SharedFiles {
  WrittenFiles written;   // add_written_files()
  WrittenFiles in_image;  // the image has all (vanished_file.h)
};
// Adds those of this process.
void add_shared_files(const ImageMeta& meta, SharedFiles& files);

struct SavedMappings {
  std::string directory;  // of what is kept; empty: there is none
  SharedFiles shared;

  // Where what is kept of the mapping's file is. Empty: its own name leads to it, or nothing is kept. Where
  // the name leads to another file, only a link, with the size and time of the checkpoint, and not if some
  // process writes the file: then all map the one that has the name, and it gets what the image has.
  std::string of(const ParsedMapping& mapping) const;
};

// Those whose names are gone have them again, with the directories (0700) that are missing. Where that cannot
// be they are mapped without it.
void put_back_mapped_files(const ImageMeta& meta, const SavedMappings& saved,
                           const std::function<void(std::string_view)>& say);

}  // namespace ckpt
