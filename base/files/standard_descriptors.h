// A command that is started with descriptor 0, 1 or 2 closed (`>&-`) would get its own files at these
// numbers: what it prints would be written into an image.
//
// Callers: main() of each command, first of all; one thread.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace ckpt {

// A standard descriptor that is closed becomes /dev/null for us, and stays closed for a program that we
// execute.
inline void take_standard_descriptors() {
  for (int fd; (fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0;) {
    if (fd > STDERR_FILENO) {
      close(fd);
      return;
    }
  }
}

}  // namespace ckpt
