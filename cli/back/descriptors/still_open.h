// Which open files of an image a program still has open, and what is in them then and now.
//
// Owner: cli. Ordinary code, one thread. Callers: the descriptors' difference, and what is made anew.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "image/read/image_meta.h"

namespace ckpt::cli {

inline bool has_position(const ParsedOpenFile& f) {
  return (kind_of(f) == OpenFileKind::kRegular || kind_of(f) == OpenFileKind::kDirectory ||
          kind_of(f) == OpenFileKind::kMemfd) &&
         (f.record.open_flags & O_PATH) == 0;
}

inline bool is_pair(OpenFileKind kind) {
  return kind == OpenFileKind::kPipe || kind == OpenFileKind::kSocketPair;
}

// The inode number of these kinds names one object. (Files of anon_inode, such as an eventfd, all have the
// same number.) Their kind may differ between two images of the same object: it says where the other end was,
// and images of jobs say that in another way.
inline bool is_channel(OpenFileKind kind) {
  return is_pair(kind) || kind == OpenFileKind::kSocket || kind == OpenFileKind::kConnection;
}

// The least number of an open file in that image, -1: none.
int first_descriptor(const ImageMeta& meta, uint32_t id);
// The bytes that the image has of an open file: what waited in it, or what was written.
std::vector<std::byte> content_of(const ImageMeta& meta, uint32_t id);

// Open files that take the place of others, by the image's id.
using ReplacedFiles = std::map<uint32_t, ScopedFd>;

class StillOpenFiles {
 public:
  struct File {
    const ParsedOpenFile* now;
    int fd;  // where it is open now
  };

  // with_others: ids of open files in which other members of a job have a part. The images must outlive this.
  // replaced: are not looked for.
  StillOpenFiles(const ImageMeta& then, const ImageMeta& now, const std::set<uint32_t>& with_others,
                 const std::string& image_directory, const ReplacedFiles& replaced);

  // nullptr: it was closed, or has to be made again. id: as the image has it.
  const File* find(uint32_t id) const;
  const std::map<uint32_t, File>& all() const { return files_; }

  // Another process has the other end, so that the pipe or pair cannot be made again.
  bool leads_outside(const ParsedOpenFile& f) const;
  bool same_content(const ParsedOpenFile& f) const;
  // What waits to be received in a socket now. kMore: all that waited then, and more behind it.
  enum class Waits { kTheSame, kMore, kOther };
  Waits what_waits(const ParsedOpenFile& f, const ParsedOpenFile& is) const;

 private:
  void find_same(const ReplacedFiles& replaced);
  void drop_broken_pairs();

  const ImageMeta &then_, &now_;
  const std::set<uint32_t>& with_others_;
  const bool of_job_;
  std::map<uint32_t, File> files_;
};

}  // namespace ckpt::cli
