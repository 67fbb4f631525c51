// Files that the program or its job has made in the directory for temporary files (TMPDIR, else /tmp), and
// has closed: a compiler's assembler text between two of its stages, a run that sort(1) is to merge. Hard
// links keep them beside the image, with the names that they had in the stop: a restarted program finds them
// again.
//
// Owner:     FileSaver. Callers: the agent of the job's first process: when it prepares, and in the stop.
// Never:     fails a checkpoint; links what is another user's or was born before the job; looks at more than
//            a bounded number of entries.
#pragma once

#include <sys/stat.h>

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "libckpt_rt/checkpoint/stages/files/saved_files_directory.h"

namespace ckpt {

class TemporaryFiles {
 public:
  // The program runs. device: of the image directory; on another device no links can be made, and nothing is
  // saved.
  void look(Arena& arena, uint64_t device, SavedFilesDirectory& saved);
  // All threads stand: adds files that were made since, and forgets names that were removed.
  void look_again(SavedFilesDirectory& saved);
  // The stop is over.
  void end_watch();

 private:
  struct File {
    uint64_t inode;
    const char* name;
    bool is_gone = false;  // the name leads to it no more
  };
  ScopedFd open_directory(struct stat* st) const;
  bool has_changed() const;
  void watch_changes();
  void take_changes(SavedFilesDirectory& saved);
  bool follow_changes(int directory, SavedFilesDirectory& saved);
  void scan(int directory, SavedFilesDirectory& saved, uint32_t most);
  // inode 0: whatever has that name.
  void save(int directory, SavedFilesDirectory& saved, const char* name, uint64_t inode);
  void forget(int directory, SavedFilesDirectory& saved, const char* name);
  void forget_if_gone(int directory, SavedFilesDirectory& saved, File& file);
  bool has_lost_name(uint64_t inode) const;

  Arena* arena_ = nullptr;
  uint64_t device_ = 0, inode_ = 0;  // inode_: of the directory that was looked at, 0 none
  int64_t changed_ns_ = 0, looked_ns_ = 0;
  const char* path_ = nullptr;
  ScopedFd changes_;            // inotify: names that came and went since look()
  long watch_ = -1;             // in changes_
  ArenaVector<uint64_t> seen_;  // inodes that were looked at, sorted after a scan
  ArenaVector<File> files_;
};

}  // namespace ckpt
