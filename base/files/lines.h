// Lines of a file that the kernel writes while it is read (/proc), without allocation.
//
// Owner:     base. Header only. Callers: any thread, in the victim too; a tracer of stopped processes. kMost
//            bytes of stack.
// Never:     libc's streams, allocates, touches errno.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/sys.h"

namespace ckpt {

// visit(std::string_view line), without the line's end, for each line until it returns false. A line of kMost
// bytes and more is left out, and so is what follows the last end of a line.
template <size_t kMost, typename Visit>
void for_each_line(int fd, Visit visit) {
  char text[kMost];
  for (size_t have = 0;;) {
    const long got = sys::call(__NR_read, fd, text + have, sizeof(text) - have);
    if (got <= 0) return;
    have += static_cast<size_t>(got);
    const std::string_view read(text, have);
    size_t done = 0;
    for (size_t line_end; (line_end = read.find('\n', done)) != read.npos; done = line_end + 1) {
      if (!visit(read.substr(done, line_end - done))) return;
    }
    have -= done;
    if (have == sizeof(text)) have = 0;
    std::memmove(text, text + done, have);
  }
}

}  // namespace ckpt
