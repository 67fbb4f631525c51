#include "libckpt_rt/core/kernel/descriptor_info.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>

#include "base/files/directory_scan.h"
#include "base/raii_fd.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

void parse_fdinfo(std::string_view text, FdInfo& info) {
  info.text = text;
  std::string_view line;
  auto number = [&](std::string_view key, int base, uint64_t& value) {
    return line.starts_with(key) && number_after(line, key, base, value);
  };
  while (next_line(text, line)) {
    uint64_t value = 0;
    if (number("pos:", 10, value)) {
      info.position = static_cast<int64_t>(value);
    } else if (number("flags:", 8, value)) {
      info.flags = static_cast<uint32_t>(value);
    } else if (line.starts_with("lock:")) {
      info.has_locks = true;
    } else if (number("eventfd-count:", 16, value)) {
      info.eventfd_count = value;
    } else if (number("eventfd-id:", 10, value)) {
      info.eventfd_id = static_cast<int64_t>(value);
    } else if (number("eventfd-semaphore:", 10, value)) {
      info.eventfd_semaphore = static_cast<int>(value);
    } else if (number("Pid:", 10, value)) {
      info.pidfd = static_cast<int64_t>(value);
    } else if (number("sigmask:", 16, value)) {
      info.signal_mask = value;
    }
  }
}

}  // namespace

TaskPath::TaskPath(int tid, const char* directory, int fd) {
  auto out = fd < 0
                 ? fmt::format_to_n(text_, sizeof(text_) - 1, "/proc/self/task/{}/{}", tid, directory)
                 : fmt::format_to_n(text_, sizeof(text_) - 1, "/proc/self/task/{}/{}/{}", tid, directory, fd);
  *out.out = '\0';
}

bool next_line(std::string_view& text, std::string_view& line) {
  if (text.empty()) return false;
  size_t end = text.find('\n');
  line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return true;
}

bool number_after(std::string_view line, std::string_view key, int base, uint64_t& value) {
  size_t at = line.find(key);
  if (at == std::string_view::npos) return false;
  at += key.size();
  while (at < line.size() && (line[at] == ' ' || line[at] == '\t')) ++at;
  bool negative = at < line.size() && line[at] == '-';
  if (negative) ++at;
  uint64_t n = 0;
  size_t first = at;
  for (; at < line.size(); ++at) {
    char c = line[at];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
    if (digit >= base) break;
    n = n * static_cast<uint64_t>(base) + static_cast<uint64_t>(digit);
  }
  if (at == first) return false;
  value = negative ? 0 - n : n;
  return true;
}

long reread_fdinfo(int proc_fd, std::span<char> buffer, Arena& arena, FdInfo& info) {
  info = FdInfo{};
  for (;;) {
    long n = sys::call(__NR_pread64, proc_fd, buffer.data(), buffer.size(), 0L);
    if (n < 0) return n;
    // The kernel builds the text whole and gives as much as fits: less than the buffer is all of it.
    if (static_cast<size_t>(n) < buffer.size()) {
      parse_fdinfo({buffer.data(), static_cast<size_t>(n)}, info);
      return n;
    }
    // An epoll with thousands of watches: one line each.
    size_t larger = buffer.size() * 8;
    void* p = arena.allocate(larger);
    if (p == nullptr) return -ENOMEM;
    buffer = {static_cast<char*>(p), larger};
  }
}

long read_fdinfo(int tid, int fd, std::span<char> buffer, Arena& arena, FdInfo& info) {
  TaskPath path(tid, "fdinfo", fd);
  ScopedFd file(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC, 0)));
  if (!file.valid()) return file.get();
  return reread_fdinfo(file.get(), buffer, arena, info);
}

long read_link(int tid, int fd, char* buffer, size_t size) {
  long n = sys::call(__NR_readlinkat, AT_FDCWD, TaskPath(tid, "fd", fd).c_str(), buffer, size - 1);
  if (n >= 0) buffer[n] = '\0';
  return n;
}

long stat_descriptor(int tid, int fd, struct stat& st) {
  return sys::call(__NR_newfstatat, AT_FDCWD, TaskPath(tid, "fd", fd).c_str(), &st, 0);
}

long count_descriptors(int tid) {
  struct stat st;
  long r = sys::call(__NR_newfstatat, AT_FDCWD, TaskPath(tid, "fd").c_str(), &st, 0);
  return r < 0 ? r : st.st_size;
}

long list_descriptors(int tid, ArenaVector<int>& fds) {
  fds.clear();
  ScopedFd dir(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, TaskPath(tid, "fd").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)));
  if (!dir.valid()) return dir.get();
  alignas(8) char buffer[16384];
  for (;;) {
    long n = sys::call(__NR_getdents64, dir.get(), buffer, sizeof(buffer));
    if (n <= 0) return n;
    for (long at = 0; at < n;) {
      auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      at += entry->bytes;
      uint64_t fd = 0;
      if (number_after(entry->name, "", 10, fd) && !fds.push_back(static_cast<int>(fd))) return -ENOMEM;
    }
  }
}

}  // namespace ckpt
