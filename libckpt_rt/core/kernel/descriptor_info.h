// What /proc says about one descriptor of one task.
//
// Owner:     libckpt_rt.
// Callers:   the agent, with its own descriptor table, while the program runs or stands still.
// Never:     touches the descriptor's open file: /proc's links and fdinfo are read from outside.
#pragma once

#include <sys/stat.h>

#include <string_view>

#include "base/memory/arena.h"
#include "base/sys.h"

namespace ckpt {

// "/proc/self/task/TID/<directory>" or ".../<directory>/FD", NUL-terminated.
class TaskPath {
 public:
  TaskPath(int tid, const char* directory, int fd = -1);
  const char* c_str() const { return text_; }

 private:
  char text_[64];
};

// The fixed lines of fdinfo, and where the variable ones are.
struct FdInfo {
  int64_t position = 0;
  uint32_t flags = 0;  // O_*, with O_CLOEXEC
  bool has_locks = false;
  uint64_t eventfd_count = 0;
  int64_t eventfd_id = -1;  // -1: this kernel does not say; so with what follows
  int eventfd_semaphore = -1;
  uint64_t signal_mask = 0;
  int64_t pidfd = 0;      // the process of a pidfd, -1 when it is gone
  std::string_view text;  // all of it
};

// Reads fdinfo of tid's descriptor, whole, into memory of `arena` when `buffer` is too small.
// Bytes read, or -errno; -ENOMEM when the arena is full.
long read_fdinfo(int tid, int fd, std::span<char> buffer, Arena& arena, FdInfo& info);
// The same through a file of /proc opened before.
long reread_fdinfo(int proc_fd, std::span<char> buffer, Arena& arena, FdInfo& info);

// Where the descriptor leads, as the kernel prints it, NUL-terminated. Length, or -errno.
long read_link(int tid, int fd, char* buffer, size_t size);
// fstat of the descriptor, from outside. 0 or -errno.
long stat_descriptor(int tid, int fd, struct stat& st);
// How many descriptors tid's table has; 0 when this kernel does not say (before 6.2), or -errno.
long count_descriptors(int tid);
// All descriptor numbers of tid's table. 0, or -errno.
long list_descriptors(int tid, ArenaVector<int>& fds);

// Splits off the first line of `text`, without its newline. False when nothing is left.
bool next_line(std::string_view& text, std::string_view& line);
// After `key` in `line`, blanks skipped, a number in the base given; false when it is not there.
bool number_after(std::string_view line, std::string_view key, int base, uint64_t& value);

}  // namespace ckpt
