#include "cli/back/program_look.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib << 10;
  }
  return 1ull << 30;
}

Result<void> check_owner(const ImageChain& image, bool trust) {
  if (trust) return {};
  for (size_t i = 0; i < image.size(); ++i) {
    struct stat st;
    if (fstat(image.image(i).fd(), &st) != 0) continue;
    if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
      return failure(
          ExitCode::kPermission, image.image(i).path(),
          "belongs to somebody else, or others may write it: it says which files are opened and written",
          "go back as that user, or with --trust");
    }
  }
  return {};
}

std::vector<std::string> children_since(pid_t pid, const std::set<pid_t>& then, int64_t realtime_ns) {
  std::vector<std::string> found;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const double boot = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9 -
                      static_cast<double>(now_ns(CLOCK_BOOTTIME)) / 1e9;
  // Each thread has those that it has made.
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::ifstream list(task.path() / "children");
    for (pid_t child; list >> child;) children.push_back(child);
  }
  for (const pid_t child : children) {
    std::ifstream stat(fmt::format("/proc/{}/stat", child));
    std::ostringstream all;
    all << stat.rdbuf();
    const std::string text = all.str();
    const size_t close = text.rfind(')');
    if (close == std::string::npos) continue;
    unsigned long long start = 0;
    std::istringstream fields(text.substr(close + 2));
    std::string skipped;
    for (int i = 3; i < 22; ++i) fields >> skipped;
    fields >> start;
    const double born = boot + static_cast<double>(start) / static_cast<double>(sysconf(_SC_CLK_TCK));
    // The kernel gives the time of birth in hundredths of a second. A child of then may have ended, and a
    // newer child has its number.
    const double taken = static_cast<double>(realtime_ns) / 1e9;
    if (born < taken + (then.contains(child) ? 0.02 : -0.02)) continue;
    const size_t open = text.find('(');
    found.push_back(fmt::format("child process {} {} was born since", child,
                                open == std::string::npos ? "" : text.substr(open, close - open + 1)));
  }
  return found;
}

std::vector<AddrRange> kernel_mappings(pid_t pid) {
  std::vector<AddrRange> all;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    char* end = nullptr;
    const uint64_t start = std::strtoull(line.c_str(), &end, 16);
    if (*end == '-') all.push_back({Addr{start}, Addr{std::strtoull(end + 1, nullptr, 16)}});
  }
  return all;
}

}  // namespace ckpt::cli
