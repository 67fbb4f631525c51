// The file of one image while it is written: created under "<name>.tmp", locked, published last.
//
// Owner:     image/write. Callers: the sink's thread only, in the victim. Raw system calls, no allocation.
//
// The lock (flock) tells a file that is being written from what a dead run left behind: it goes with
// the open file, whatever way the writer ends.
#pragma once

#include <limits.h>

#include "base/raii_fd.h"
#include "base/result.h"
#include "image/format/image_name.h"
#include "image/write/image_output.h"

namespace ckpt {

// Does the name lead to this open file? A caller that holds the file's lock can rely on the answer until it
// releases the lock: only the holder removes or renames the file. Without the lock the name may be gone, or
// another file's.
bool has_name(int fd, int dir_fd, const char* name);

class ImageFile final : public ImageOutput {
 public:
  // Mode 0600 whatever the umask; exclusively; following no link. The leftover ".tmp" of a dead
  // writer is replaced, that of a living one is an error.
  Result<void> create(int dir_fd, const char* name, bool want_direct);
  // Blocks for the file ahead of the writes, in large steps, so that no write has to extend it.
  // Best effort: what the file system cannot give now, the write itself will report.
  void reserve_until(uint64_t bytes) override;
  // Cuts off what was reserved, syncs, renames to the final name, syncs the directory. On failure there is
  // no file of the final name, or, with `replace`, the old or the new one, complete. A file that has that
  // name already is an error without `replace`.
  Result<void> publish(FileBackend& backend, uint64_t bytes, bool replace) override;
  // Removes the temporary file, if there is one.
  void remove() override;

  int fd() const override { return fd_.get(); }
  bool direct() const override { return direct_; }
  bool in_memory() const override { return in_memory_; }
  const char* path() const override { return path_; }

 private:
  void find_path(int dir_fd);
  Result<void> create_exclusively();
  Result<void> unlink_stale();

  ScopedFd fd_;
  int dir_fd_ = -1;
  bool direct_ = false, in_memory_ = false;
  bool reserving_ = false;
  uint64_t reserved_ = 0;
  char name_[sizeof(ImageName::text)] = {};
  char temporary_[sizeof(ImageName::text) + 4] = {};
  char path_[PATH_MAX] = {};  // of the final name, for messages
};

}  // namespace ckpt
