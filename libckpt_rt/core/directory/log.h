// The log file in the image directory: "ckpt_rt.log", mode 0600. Nothing is ever printed into the
// program's output.
//
// Owner:     libckpt_rt. Callers: the agent, in its own descriptor table.
#pragma once

#include <string_view>

#include "base/result.h"

namespace ckpt {

void log_line(int dir_fd, std::string_view text);
// To be written to at its end; flags as of open(2). -1: it cannot be made, or something else has its name.
int open_log(int dir_fd, int flags);

template <typename... Args>
void log_format(int dir_fd, fmt::format_string<Args...> format, Args&&... args) {
  char text[600];
  auto out = fmt::format_to_n(text, sizeof(text), format, std::forward<Args>(args)...);
  log_line(dir_fd, {text, out.size < sizeof(text) ? out.size : sizeof(text)});
}

}  // namespace ckpt
