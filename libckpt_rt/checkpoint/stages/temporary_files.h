// Files that the program or its job has made where temporary files are made (TMPDIR, else /tmp), and has closed: a compiler's
// assembler text between two of its stages, a run that sort(1) is to merge. They are kept beside the image by hard
// links, with the names that they had in the stop, so that they are there when a restarted program wants them.
//
// Owner:     FileKeeper. Callers: the agent of the job's first process: when it prepares, and in the stop.
// Never:     fails a checkpoint; links what is another user's or was born before the job; looks at more than a
//            bounded number of entries.
#pragma once

#include "base/arena.h"
#include "base/raii_fd.h"

namespace ckpt {

class TemporaryFiles {
 public:
  // The program runs. device: of the images; kept: the directory that the links go to, valid to the end of the stop.
  void look(Arena& arena, uint64_t device, int kept);
  // All threads stand: what was made or removed since.
  void look_again();

 private:
  struct File {
    uint64_t inode;
    const char* name;
  };
  void scan(uint32_t most);
  bool follow_changes();
  // inode 0: whatever it is.
  void keep(const char* name, uint64_t inode);
  void forget(const char* name);

  Arena* arena_ = nullptr;
  ScopedFd directory_;
  ScopedFd changes_;  // inotify: names that came and went since look()
  int kept_ = -1;
  uint64_t device_ = 0;
  int64_t changed_ns_ = 0, looked_ns_ = 0;
  const char* path_ = nullptr;
  ArenaVector<uint64_t> seen_;  // inodes that were looked at, sorted after a scan
  ArenaVector<File> files_;
};

}  // namespace ckpt
