#include "cli/ask/children.h"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>

namespace ckpt::cli {

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", pid), error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    std::ifstream in(task->path() / "children");
    for (pid_t child; in >> child;) children.push_back(child);
  }
  return children;
}

}  // namespace ckpt::cli
