// Files that the program has open, or has mapped, are saved beside the image, in case they are removed or
// replaced before a restart: by a hard link where the image directory is on the same file system, else by a
// copy, if they are small and not being written.
//
// Owner:     one Attempt. Callers: the agent: ahead of the stop; in the stop, for what was opened since, by
//            links alone; and when the image is durable, for what only a copy can save.
// Never:     fails a checkpoint: what is not covered is in the log. Changes a byte of a file; a link changes
//            its count of links and its change time.
#pragma once

#include <sys/stat.h>

#include "base/memory/arena.h"
#include "base/settings/settings.h"
#include "libckpt_rt/checkpoint/stages/files/saved_files_directory.h"
#include "libckpt_rt/checkpoint/stages/files/temporary_files.h"

namespace ckpt {

struct CapturedDescriptor;
class MemoryMap;

class FileSaver {
 public:
  // directory: of the images; image: the name or path of the image beside which they are saved. Allocates
  // from the arena.
  void open(Arena& arena, int directory, const char* image, SavedFiles how);
  // The program runs. log: the directory of the log. Last: the image is durable. A file that another process
  // is copying is not waited for, and looked at again then.
  enum class Time { kFirst, kLast };
  void save_all(int log, Time time);
  // After the first save_all(): the files that are mapped, and that it has not met.
  void save_mapped(const MemoryMap& map, int log);
  // Ahead of the commit of the image, for its names. A job's coordinator does it for all members.
  void make_durable(int log);
  // The program runs; this process is the first of its job.
  void save_temporary();
  // All threads stand, and were sampled: files that were opened since save_all. Counts the new links in the
  // samples.
  void save_new(std::span<CapturedDescriptor> entries);
  void after_stop() { temporary_.end_watch(); }

 private:
  struct File {
    uint64_t device, inode;
    auto operator<=>(const File&) const = default;
  };

  struct Kept {
    uint64_t device, inode;
    uint64_t name_device;  // by which a restart looks for it
  };

  void save(int tid, int fd);
  // path: of the file, or of a descriptor that leads to it.
  void save_at(const char* path, const struct stat& st, uint64_t name_device);
  void save_opened(std::span<CapturedDescriptor> entries);
  bool link(const char* path, const Kept& file, bool* made);
  void say_what_is_not_covered(int log, const char* which) const;
  enum class Copy { kMade, kFailed, kUnderWay };  // kUnderWay: by another process
  Copy copy(const char* path, const struct stat& st, uint64_t name_device);
  Copy copy_under(const char* path, const struct stat& st, const char* name);
  Copy publish(const char* made, const char* name);

  Arena* arena_ = nullptr;
  uint64_t device_ = 0;  // of the image directory
  SavedFiles how_ = SavedFiles::kNone;
  SavedFilesDirectory directory_;
  TemporaryFiles temporary_;
  ArenaVector<File> seen_;  // sorted when save_all has ended
  uint64_t copied_ = 0;
  uint32_t not_covered_ = 0;
  Time time_ = Time::kFirst;
};

}  // namespace ckpt
