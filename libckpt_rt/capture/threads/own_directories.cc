#include "libckpt_rt/capture/threads/own_directories.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/stat.h>

#include <atomic>
#include <string_view>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::own_directories {

namespace {

constexpr size_t kLongestPath = 4096;

struct Place {
  int32_t tid = 0;
  uint32_t umask = 0;
  char directory[kLongestPath] = {};
};
CKPT_LARGE_TABLE constinit Place places[kMost]{};
constinit uint32_t used = 0;
constinit std::atomic<bool> some_unshared{false};

Place* place_of(int tid) {
  for (uint32_t i = 0; i < used; ++i) {
    if (places[i].tid == tid) return &places[i];
  }
  return nullptr;
}

bool shares_with_another(int tid) {
  for (uint32_t i = 0; i < used; ++i) {
    if (sys::call(__NR_kcmp, tid, places[i].tid, KCMP_FS, 0L, 0L) == 0) return true;
  }
  return false;
}

// False: it has no name that leads there.
bool read_link(int tid, const char* name, char (&link)[kLongestPath]) {
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/{}", tid, name).out = '\0';
  const long n = sys::call(__NR_readlinkat, AT_FDCWD, path, link, sizeof(link) - 1);
  if (n <= 0) return false;
  link[n] = '\0';
  return link[0] == '/' && !std::string_view(link).ends_with(" (deleted)");
}

bool read_inode(int tid, const char* name, struct stat& found) {
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/{}", tid, name).out = '\0';
  return sys::call(__NR_newfstatat, AT_FDCWD, path, &found, 0L) == 0;
}

bool has_root_of(int tid, int first) {
  struct stat own {
  }, of_first{};
  return read_inode(tid, "root", own) && read_inode(first, "root", of_first) &&
         own.st_ino == of_first.st_ino && own.st_dev == of_first.st_dev;
}

bool read_umask(int tid, uint32_t& umask) {
  char path[64], text[4096];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/status", tid).out = '\0';
  const long n = read_small_file(path, text, sizeof(text));
  uint64_t value = 0;
  if (n <= 0 || numbers(line_of({text, static_cast<size_t>(n)}, "\nUmask:"), 8, &value, 1) != 1) return false;
  umask = static_cast<uint32_t>(value);
  return true;
}

}  // namespace

// relaxed: the thread that looks at it does so when all stand.
void note_unshare() { some_unshared.store(true, std::memory_order_relaxed); }

void capture_stopped(const ThreadSlot* threads, int first) {
  used = 0;
  if (!some_unshared.load(std::memory_order_relaxed) || is_filtered()) return;
  for (const ThreadSlot* s = threads; s != nullptr && used < kMost; s = s->next) {
    if (!s->credentials.known || sys::call(__NR_kcmp, first, s->tid, KCMP_FS, 0L, 0L) <= 0) continue;
    Place& place = places[used];
    if (shares_with_another(s->tid) || !has_root_of(s->tid, first) ||
        !read_link(s->tid, "cwd", place.directory) || !read_umask(s->tid, place.umask))
      continue;
    place.tid = s->tid;
    ++used;
  }
}

bool is_saved(int tid) { return place_of(tid) != nullptr; }

long enter_as_process(int tid, bool& is_there) {
  const Place* place = place_of(tid);
  is_there = true;
  if (place == nullptr) return 0;
  if (const long r = sys::call(__NR_unshare, long{CLONE_FS}); r != 0) return r;
  sys::call(__NR_umask, long{place->umask});
  is_there = sys::call(__NR_chdir, place->directory) == 0;
  return 0;
}

long enter(int tid) { return sys::call(__NR_chdir, place_of(tid)->directory); }

}  // namespace ckpt::own_directories
