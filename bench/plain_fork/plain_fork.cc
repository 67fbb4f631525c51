// libplain_fork.so: the classical alternative to compare with, as small as it can be. Preloaded, it forks
// at SIGUSR2; the child has the program's memory by copy-on-write, writes what is present of it to a
// file, and ends. What it writes could not be restarted: no threads, no descriptors, no registers.
//
// PLAIN_FORK_FILE names the file; it appears under that name when it is durable. Writes are O_DIRECT
// and without a copy in between, as in ckpt_rt, so that only the way to a still memory differs.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr uint64_t kPage = 4096;
char target[1024], unfinished[1040];

[[noreturn]] void end_child(int code) {
  for (;;) syscall(SYS_exit_group, code);
}

void write_range(int file, uint64_t begin, uint64_t end) {
  while (begin < end) {
    uint64_t most = 8 << 20;
    ssize_t n = write(file, reinterpret_cast<void*>(begin), end - begin < most ? end - begin : most);
    if (n <= 0) end_child(1);
    begin += static_cast<uint64_t>(n);
  }
}

// Runs of pages that are in memory, from the kernel's page map of this process.
void write_present(int file, int page_map, uint64_t begin, uint64_t end) {
  uint64_t entries[512];
  uint64_t run = 0;
  for (uint64_t at = begin; at < end;) {
    uint64_t pages = (end - at) / kPage;
    if (pages > 512) pages = 512;
    if (pread(page_map, entries, pages * 8, static_cast<off_t>(at / kPage * 8)) !=
        static_cast<ssize_t>(pages * 8)) {
      end_child(1);
    }
    for (uint64_t i = 0; i < pages; ++i, at += kPage) {
      const bool present = (entries[i] >> 62) != 0;  // in memory or swapped out
      if (present && run == 0) run = at;
      if (!present && run != 0) {
        write_range(file, run, at);
        run = 0;
      }
    }
  }
  if (run != 0) write_range(file, run, end);
}

[[noreturn]] void write_memory() {
  int file = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0 && errno == EINVAL) file = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  int page_map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0 || page_map < 0 || maps < 0) end_child(1);
  static char text[4 << 20];  // of the child: untouched in the program
  size_t size = 0;
  for (ssize_t n; (n = read(maps, text + size, sizeof(text) - 1 - size)) > 0;) size += static_cast<size_t>(n);
  for (char* line = text; line < text + size;) {
    char* line_end = static_cast<char*>(memchr(line, '\n', static_cast<size_t>(text + size - line)));
    if (line_end == nullptr) break;
    uint64_t begin = strtoull(line, &line, 16);
    uint64_t end = strtoull(line + 1, &line, 16);
    if (std::strncmp(line, " rw-p", 5) == 0) write_present(file, page_map, begin, end);
    line = line_end + 1;
  }
  if (fsync(file) != 0 || rename(unfinished, target) != 0) end_child(1);
  end_child(0);
}

void on_signal(int) {
  const int saved = errno;
  int status;
  // The last child, if it has ended. No exit signal: the program sees no child of ours.
  while (waitpid(-1, &status, WNOHANG | __WCLONE) > 0) {
  }
  if (syscall(SYS_clone, 0, nullptr, nullptr, nullptr, 0) == 0) write_memory();
  errno = saved;
}

__attribute__((constructor)) void install() {
  const char* file = getenv("PLAIN_FORK_FILE");
  if (file == nullptr || std::strlen(file) >= sizeof(target)) return;
  std::strcpy(target, file);
  std::snprintf(unfinished, sizeof(unfinished), "%s.unfinished", file);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace
