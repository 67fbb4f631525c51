// The settings of the terminal that the program comes back on: without echo or lines, if it had them so.
//
// Owner:     restart. Callers: ckpt-restart's main thread.
// Only where both are the terminal's foreground job, the program at the checkpoint and ckpt-restart now. The
// terminal stays as the program leaves it.
#pragma once

#include <termios.h>

#include <optional>

#include "base/raii_fd.h"
#include "image/read/image_meta.h"

namespace ckpt {

class Terminal {
 public:
  // Before the program runs: from then on its settings are the program's.
  void set_as_saved(const ImageMeta& meta);
  // The restart has failed.
  void put_back();
  // Is its window of another size than at the checkpoint?
  bool other_size() const { return other_size_; }

 private:
  ScopedFd terminal_;
  std::optional<termios> before_;
  bool other_size_ = false;
};

}  // namespace ckpt
